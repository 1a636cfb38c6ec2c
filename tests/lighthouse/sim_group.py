"""A simulated replica group: its processes, which step in attempts."""

from typing import TYPE_CHECKING

from sim_attempt import Attempt, dealt
from sim_cold_start import SimColdStart
from sim_server import is_end
from sim_world import Act, Link

from lighthouse.lineage import digest_of
from lighthouse.model import (
    Hello,
    Member,
    Notice,
    NoticeKind,
    Phase,
    Quorum,
    Refusal,
    Welcome,
    parse_replica_id,
)

if TYPE_CHECKING:
    from sim_launcher import Launcher

RANKS = (0, 1)
BEAT_S = 0.5
PULSE_S = 0.6
ASK_TIMEOUT_S = 4.0


class GroupLink(Link):
    """The connection of one incarnation, and what is open on it as the server sees it."""

    def __init__(self, group: "SimGroup") -> None:
        super().__init__(group.world, lambda: group.server_lost(self), group.client_lost)
        self.streams: dict[int, int] = {}
        self.calls: set[int] = set()


class SimGroup:
    """One incarnation. What it sends goes up its link; what it is told comes down."""

    def __init__(self, launcher: "Launcher") -> None:
        self.launcher = launcher
        self.world = launcher.world
        self.server = launcher.server
        self.incarnation = launcher.incarnation
        self.id = parse_replica_id(f"job/{launcher.number}:{launcher.incarnation}")
        self.alive = True
        self.frozen_until_s = 0.0
        self.hung_until_s = 0.0
        self.frozen_rank: int | None = None
        self.step = 0
        self.failures = 0
        self.link: GroupLink | None = None
        self.call: int | None = None
        self.asked_at = 0
        self.attempt: Attempt | None = None
        self.heard_over: dict[int, int] = dict.fromkeys(RANKS, 0)
        self.abandoned: list[int] = []
        self.phase: Phase | None = None
        self.rounds: int | None = None
        self.draining = False
        self.cold_start = SimColdStart(self)
        self._numbers = 0
        self.world.after(0.1, self._beat)
        self.world.after(0.1, self._pulse)

    # Its connection.

    def connect(self) -> None:
        if not self.alive or self.link is not None:
            return
        if self._is_frozen() or not self.server.up:
            self.world.after(self.world.random.uniform(0.1, 0.4), self.connect)
            return
        link = self.link = GroupLink(self)
        self.server.links.append(link)
        for rank in RANKS:
            self._open(link, rank)
        if self.phase is not None:
            self.tell(self.phase, self.rounds)
        for quorum_id in self.abandoned[-3:]:
            self._say_abandoned(quorum_id)
        self.world.after(0.05, self.cold_start.go_on)
        if self.attempt is None:
            self.world.after(0.05, self.ask)

    def _open(self, link: GroupLink, rank: int) -> None:
        number = self.number()
        hello = Hello(
            job="job",
            group=self.launcher.number,
            replica_id=self.id.text,
            group_world_size=len(RANKS),
            step=self.step,
            group_rank=rank,
        )

        def arrive() -> None:
            link.streams[rank] = number
            self.server.told[number] = lambda told: link.send(lambda: self._hear(rank, told), up=False)
            outcome, effects = self.server.machine.attach(self.id, hello, number, self.server.now_s())
            self.server.carry_out(effects)
            if isinstance(outcome, Refusal):
                self.server.told.pop(number, None)
                link.send(lambda: self._hear(rank, outcome), up=False)
                return
            self.up(lambda: self._said_pulse(link, rank))
            if rank == 0 and isinstance(outcome, Welcome):
                self.server.restores.welcomed(outcome.start_mode)
                link.send(lambda: self.cold_start.welcomed(outcome.start_mode), up=False)

        self.up(arrive)

    def up(self, act: Act) -> None:
        if self.link is not None:
            self.link.send(lambda: self.server.receive(act), up=True)

    def server_lost(self, link: "GroupLink") -> None:
        """The server notices that the connection is gone."""

        def notice() -> None:
            machine, now_s = self.server.machine, self.server.now_s
            for number in list(link.streams.values()):
                self.server.told.pop(number, None)
                self.server.carry_out(machine.detach(self.id, number, now_s()))
            for call in list(link.calls):
                if self.server.told.pop(call, None) is not None:
                    self.server.carry_out(machine.withdraw(self.id, call, now_s()))

        self.server.receive(notice)

    def client_lost(self) -> None:
        self.link, self.call = None, None
        self.world.after(self.world.random.uniform(0.05, 0.3), self.connect)

    # What it says.

    def _beat(self) -> None:
        if not self.alive:
            return
        if not self._is_frozen() and self.link is not None and not self.link.up_cut:
            self._send_beat(self.world.delay_s())
            if self.world.chance(0.05):
                self._send_beat(self.world.random.uniform(0.1, 2.0))
        self.world.after(BEAT_S, self._beat)

    def _send_beat(self, delay_s: float) -> None:
        """A heartbeat is a call of its own: it may come late, twice, or after its sender's death."""

        def arrive() -> None:
            _, effects = self.server.machine.beat(self.id, self.server.now_s())
            self.server.carry_out(effects)

        self.world.after(delay_s, lambda: self.server.receive(arrive))

    def _pulse(self) -> None:
        if not self.alive:
            return
        if not self._is_frozen() and self.link is not None:
            link = self.link
            for rank in RANKS:
                if rank != self.frozen_rank:
                    self.up(lambda rank=rank: self._said_pulse(link, rank))
        self.world.after(PULSE_S, self._pulse)

    def _said_pulse(self, link: GroupLink, rank: int) -> None:
        number = link.streams.get(rank)
        if number is not None:
            self.server.carry_out(self.server.machine.pulse(self.id, number, self.server.now_s()))

    def tell(self, phase: Phase, rounds: int | None = None) -> None:
        step, link = self.step, self.link
        self.phase, self.rounds = phase, rounds

        def arrive() -> None:
            number = None if link is None else link.streams.get(0)
            if number is not None:
                now_s = self.server.now_s()
                effects = self.server.machine.progress(self.id, number, step, phase, now_s, rounds=rounds)
                self.server.carry_out(effects)

        self.up(arrive)

    def ask(self) -> None:
        if not self.alive or self.link is None or self.call is not None or self.attempt is not None:
            return
        if not self.cold_start.is_over or self.is_put_off(self.ask):
            return
        self.tell(Phase.QUORUM)
        call, link = self.number(), self.link
        self.call = call
        member = Member(id=self.id, step=self.step, commit_failures=self.failures)

        def arrive() -> None:
            link.calls.add(call)
            self.server.told[call] = lambda told: link.send(lambda: self._answered(call, told), up=False)
            self.server.carry_out(self.server.machine.ask(member, call, self.server.now_s()))

        self.up(arrive)
        self.world.after(ASK_TIMEOUT_S, lambda: self._time_out(call))

    def _time_out(self, call: int) -> None:
        """The caller loses patience and asks again."""
        if self.call != call or not self.alive:
            return
        self.call = None

        def arrive() -> None:
            if self.server.told.pop(call, None) is not None:
                self.server.carry_out(self.server.machine.withdraw(self.id, call, self.server.now_s()))

        self.up(arrive)
        self.ask()

    def abandon(self) -> None:
        """A private error: it gives the attempt up and asks again."""
        if self.attempt is None or self.is_put_off(lambda: None):
            return
        quorum_id = self.attempt.quorum.quorum_id
        self.abandoned.append(quorum_id)
        self._say_abandoned(quorum_id)
        self._give_up()

    def _say_abandoned(self, quorum_id: int) -> None:
        link = self.link

        def arrive() -> None:
            number = None if link is None else link.streams.get(0)
            if number is not None:
                now_s = self.server.now_s()
                effects = self.server.machine.abandon(self.id, number, quorum_id, "private", now_s)
                self.server.carry_out(effects)

        self.up(arrive)

    def leave(self) -> None:
        """A planned leave, at the end of a step."""
        link = self.link

        def arrive() -> None:
            number = None if link is None else link.streams.get(0)
            if number is not None:
                now_s = self.server.now_s()
                effects = self.server.machine.goodbye(
                    self.id, number, finished=False, step=self.step, now_s=now_s
                )
                self.server.carry_out(effects)

        self.up(arrive)
        self.world.after(0.7, self.die)

    # What it is told.

    def _hear(self, rank: int, told: Quorum | Notice | Refusal) -> None:
        if not self.alive or self.is_put_off(lambda: self._hear(rank, told)):
            return
        if is_end(told):
            if digest_of(self.id.text) in dict(self.server.disk.tombs):
                self.server.judge.out.add(self.id.text)
            self.die()
        elif isinstance(told, Notice) and told.kind is NoticeKind.ATTEMPT_OVER:
            self.heard_over[rank] = max(self.heard_over[rank], told.quorum_id)
            self._act_on_what_is_over()
        elif isinstance(told, Notice) and told.kind is NoticeKind.DRAIN:
            self.draining = True

    def _act_on_what_is_over(self) -> None:
        attempt = self.attempt
        if attempt is not None and min(self.heard_over.values()) >= attempt.quorum.quorum_id:
            self._give_up()

    def _answered(self, call: int, told: Quorum | Notice | Refusal) -> None:
        if not self.alive or self.is_put_off(lambda: self._answered(call, told)):
            return
        if is_end(told):
            self.die()
            return
        if self.call != call:
            return
        self.call = None
        if not isinstance(told, Quorum):
            self.world.after(0.2, self.ask)
            return
        attempt = self.launcher.attempts.get(id(told)) or Attempt(quorum=told)
        self.launcher.attempts[id(told)] = attempt
        self.attempt = attempt
        attempt.groups.append(self)
        self._act_on_what_is_over()
        if self.attempt is None:
            return
        if self.step < told.max_step:
            self.tell(Phase.HEAL)
            self.world.after(self.world.random.uniform(0.2, 0.4), lambda: self._healed(attempt))
            return
        rounds = dealt(told).count(self.id)
        self.tell(Phase.COMPUTE, rounds)
        self.world.after(self._compute_s(rounds), lambda: self._reach(attempt))

    # Its step.

    def _compute_s(self, rounds: int) -> float:
        return rounds * self.launcher.slowness * self.world.random.uniform(0.1, 0.13)

    def _healed(self, attempt: Attempt) -> None:
        """It has the state now, unless all that had it died before."""
        if not self.alive or self.attempt is not attempt or self.is_put_off(lambda: self._healed(attempt)):
            return
        if any(donor.has_state_of(attempt) for donor in self.launcher.others()):
            self.step = attempt.quorum.max_step
            self._reach(attempt)
        else:
            self._give_up()

    def has_state_of(self, attempt: Attempt) -> bool:
        """Whether it can give the state that the members of this attempt want."""
        names = [member.id.text for member in attempt.quorum.members]
        return self.alive and self.id.text in names and self.step >= attempt.quorum.max_step

    def _reach(self, attempt: Attempt) -> None:
        """It has computed, and waits in the reduce for the others."""
        if not self.alive or self.attempt is not attempt:
            return
        if self.is_put_off(lambda: self._reach(attempt)):
            return
        if self.frozen_rank is not None:
            return  # no rank gets on without the others
        self.tell(Phase.REDUCE)
        attempt.reached.add(self.id.text)
        if attempt.is_complete():
            for group in attempt.groups:
                if group.attempt is attempt:
                    self.world.after(self.world.random.uniform(0.0, 0.05), lambda g=group: g._vote(attempt))

    def _vote(self, attempt: Attempt) -> None:
        if not self.alive or self.attempt is not attempt:
            return
        if self.is_put_off(lambda: self._vote(attempt)):
            return
        if self.world.chance(0.02):
            self._give_up()
            return
        self.attempt = None
        self.step, self.failures = attempt.quorum.max_step + 1, 0
        self.launcher.saves.committed(self, attempt)
        if self.draining:
            self.leave()
        else:
            self.ask()

    def _give_up(self) -> None:
        self.attempt = None
        self.failures += 1
        self.ask()

    # What happens to it.

    def die(self, *, seen_after_s: float = 0.02) -> None:
        """SIGKILL. `seen_after_s`: when the server sees its sockets closed."""
        if not self.alive:
            return
        self.alive = False
        link, self.link = self.link, None
        if link is not None:
            link.broken.add("client")
            self.world.after(seen_after_s, lambda: link.break_end("server"))
        if self.launcher.group is self:
            self.launcher.restart_later()

    def hang(self, duration_s: float) -> None:
        """Its threads that beat and pulse go on, the one that trains does not."""
        self.hung_until_s = max(self.hung_until_s, self.world.now_s + duration_s)

    def freeze(self, duration_s: float) -> None:
        self.frozen_until_s = max(self.frozen_until_s, self.world.now_s + duration_s)

    def freeze_one_rank(self) -> None:
        self.frozen_rank = 1

    def _is_frozen(self) -> bool:
        return self.world.now_s < self.frozen_until_s

    def is_put_off(self, act: Act) -> bool:
        """Whether it can do nothing now; it then does this when it can."""
        wakes_s = max(self.frozen_until_s, self.hung_until_s)
        if self.world.now_s >= wakes_s:
            return False
        self.world.after(wakes_s - self.world.now_s + 0.01, act)
        return True

    def number(self) -> int:
        """A number that no other call or stream has."""
        self._numbers += 1
        return (self.launcher.number * 1000 + self.incarnation) * 100_000 + self._numbers
