"""The real machine behind a simulated process, disk and clock; every quorum it issues is judged here."""

from collections.abc import Callable

from oracle import expected
from sim_restores import RestoreJudge
from sim_world import Link, World

from lighthouse import quorum_book
from lighthouse.effects import Answer, CloseStream, Effect, Happening, Note, Persist, Refuse, Tell
from lighthouse.machine import JobMachine
from lighthouse.model import (
    ColdStartAnswer,
    JobRecord,
    Key,
    Notice,
    NoticeKind,
    Quorum,
    Refusal,
    ReplicaId,
    SavesFound,
)
from lighthouse.quorum import Decision, Ready, Rules, Situation
from lighthouse.table import Limits

LIMITS = Limits(
    heartbeat_timeout_s=2.0, pulse_timeout_s=2.0, max_replicas=12, max_buried=40, forget_after_s=8.0
)
TICK_S = 0.2

Told = Callable[[Quorum | Notice | Refusal], None]


class SimServer:
    """Up, paused or down. A request that reaches it while it is down is lost."""

    def __init__(self, world: World, rules: Rules, *, with_disk: bool) -> None:
        self.world = world
        self.rules = rules
        self.with_disk = with_disk
        self.disk = JobRecord(job="job", quorum_id=0)
        self.disk_full = False
        self.before = self.disk
        self.up = False
        self.paused_until_s = 0.0
        self.links: list[Link] = []
        self.told: dict[int, Told] = {}
        self.named_slow: set[object] = set()
        self.restores = RestoreJudge(self)
        self.judge = Judge(self)
        self._lost_s = 0.0
        self._asleep_since_s: float | None = None
        self._inbox: list[Callable[[], None]] = []
        self._life = 0
        self.start()

    # Its process.

    def start(self) -> None:
        self.up = True
        self._life += 1
        if not self.with_disk:
            self.disk = JobRecord(job="job", quorum_id=int((100 + self.world.now_s) * 4096))
        self.machine = JobMachine(
            record=self.disk,
            rules=self.rules,
            limits=LIMITS,
            warm_until_s=self.now_s() + LIMITS.heartbeat_timeout_s,
        )
        self.judge.server_started()
        self.restores.server_started()
        self._tick(self._life)

    def crash(self, down_s: float) -> None:
        if not self.up:
            return
        self.up = False
        self._inbox.clear()
        self.told.clear()
        links, self.links = self.links, []
        for link in links:
            link.broken.add("server")
            self.world.after(0.02, lambda link=link: link.break_end("client"))
        self.world.after(down_s, self.start)

    def lose_disk(self) -> None:
        """It goes on elsewhere, with an empty disk."""
        self.crash(0.5)
        self.disk = self.before = JobRecord(job="job", quorum_id=0)
        self.judge.disk_lost()

    def pause(self, duration_s: float) -> None:
        """SIGSTOP, or a write to a slow disk: messages wait, and its own clock stands still."""
        self.paused_until_s = max(self.paused_until_s, self.world.now_s + duration_s)
        if self._asleep_since_s is None:
            self._asleep_since_s = self.world.now_s
            self.world.after(duration_s, self._wake)

    def now_s(self) -> float:
        asleep_s = 0.0 if self._asleep_since_s is None else self.world.now_s - self._asleep_since_s
        return self.world.now_s - self._lost_s - asleep_s

    def _wake(self) -> None:
        if self.world.now_s < self.paused_until_s:
            self.world.after(self.paused_until_s - self.world.now_s, self._wake)
            return
        if self._asleep_since_s is not None:
            self._lost_s += self.world.now_s - self._asleep_since_s
            self._asleep_since_s = None
        inbox, self._inbox = self._inbox, []
        for act in inbox:
            self.receive(act)

    def _tick(self, life: int) -> None:
        if life == self._life and self.up:
            self.receive(lambda: self.carry_out(self.machine.tick(self.now_s())))
            self.world.after(TICK_S, lambda: self._tick(life))

    def receive(self, act: Callable[[], None]) -> None:
        """Something arrives: now, when it wakes, or never."""
        if self.up and self._asleep_since_s is not None:
            self._inbox.append(act)
        elif self.up:
            act()

    # Its shell.

    def carry_out(self, effects: list[Effect]) -> None:
        life = self._life
        for effect in effects:
            if not self.up or life != self._life:
                return
            match effect:
                case Persist(record=record):
                    self._persist(record)
                case Answer(quorum=quorum, calls=calls):
                    self.judge.issued(quorum)
                    for call in calls:
                        self.told.pop(call)(quorum)
                case Refuse(call=call, refusal=refusal):
                    self.told.pop(call)(refusal)
                case Tell(streams=streams, notice=notice):
                    for stream in streams:
                        self._tell(stream, notice)
                case CloseStream(stream=stream, refusal=refusal):
                    self._tell(stream, refusal)
                    self.told.pop(stream, None)
                case Note(happening=Happening.SLOW, fields=fields):
                    self.named_slow.add(fields["replica"])

    def _tell(self, stream: int, word: Notice | Refusal) -> None:
        """To a stream whose end the server has not noticed yet, in vain."""
        if stream in self.told:
            self.told[stream](word)

    def propose(self, id: ReplicaId, found: SavesFound | None) -> ColdStartAnswer | Refusal | None:
        """What a group is told that asks how to start; None if the call fails."""
        starts, now_s = self.machine.cold_starts, self.now_s()
        outcome, effects = starts.propose(id, found, now_s)
        self.carry_out(effects)
        if isinstance(outcome, Refusal):
            return outcome
        record = outcome.record
        if record is not None:
            before, restore = self.machine.record.restore, record.restore
            if restore is not None and (before is None or before.save != restore.save):
                self.restores.decide(restore.save)
            if not self._try_to_write(record):
                return None
            self.carry_out(starts.recorded(id, record, now_s))
        self.restores.told(id, outcome.answer, found)
        return outcome.answer

    def _persist(self, record: JobRecord) -> None:
        if self.disk_full:
            self.carry_out(self.machine.persist_failed(self.now_s()))
        elif self._try_to_write(record):
            if self.world.chance(0.02):
                self.pause(0.5)
            self.carry_out(self.machine.persisted(record, self.now_s()))

    def _try_to_write(self, record: JobRecord) -> bool:
        """A disk that can be full, or belong to a machine that crashes in the middle."""
        if self.disk_full:
            return False
        if self.world.chance(0.01):
            if self.world.chance(0.5):
                self._write(record)
            self.crash(down_s=0.5)
            return False
        self._write(record)
        return True

    def _write(self, record: JobRecord) -> None:
        self.before, self.disk = self.disk, record
        if record.restore is not None and record.restore != self.before.restore:
            self.judge.highest_step = record.max_step
            self.restores.written(record.restore.save)


class Judge:
    """What must hold of every quorum when its members are told, whatever happened before."""

    def __init__(self, server: SimServer) -> None:
        self._server = server
        self.quorums: list[Quorum] = []
        self.out: set[str] = set()
        self.situation: Situation | None = None
        self.highest_step = 0
        self.holders: dict[Key, str] = {}
        self.replaced: set[str] = set()
        self._is_first = True
        self._last: Quorum | None = None

    def server_started(self) -> None:
        self._is_first = True
        if not self._server.with_disk:
            self._forget()

    def disk_lost(self) -> None:
        """Nobody lives, and what was on record is gone: ids go on above those of the saves."""
        self._forget()
        self._last = None

    def _forget(self) -> None:
        self.highest_step = 0
        self.holders.clear()
        self.replaced.clear()
        self._server.restores.forget()

    def issued(self, quorum: Quorum) -> None:
        names = [member.id.text for member in quorum.members]
        assert len(names) >= max(1, self._server.rules.min_replicas), "never below the minimum"
        assert names == sorted(set(names))
        assert not self.out & set(names), "who was counted out is in no quorum"
        assert self._server.disk.quorum_id == quorum.quorum_id, "on disk before anybody is told"
        assert self._server.disk.members == tuple(names)
        self._check_id(quorum)
        self._check_record(quorum)
        self._check_majority(names)
        self._server.restores.issued(quorum)
        self.quorums.append(quorum)
        self._last = quorum
        self.highest_step = max(self.highest_step, quorum.max_step)
        self._is_first = False
        self._check_incarnations(quorum)
        self._check_bounds()

    def _check_incarnations(self, quorum: Quorum) -> None:
        """Who was replaced in a quorum never comes back, not even after a restart of the server."""
        for member in quorum.members:
            name, holder = member.id.text, self.holders.get(member.id.key)
            assert name not in self.replaced, "an old incarnation is back"
            if holder is not None and holder != name:
                self.replaced.add(holder)
            self.holders[member.id.key] = name

    def _check_id(self, quorum: Quorum) -> None:
        last = self._last
        if last is None:
            return
        same = [m.place() for m in quorum.members] == [m.place() for m in last.members]
        if self._is_first or not same:
            assert quorum.quorum_id > last.quorum_id, "a new list, or a new server, has a higher id"
        assert quorum.quorum_id >= last.quorum_id, "ids never fall"

    def _check_record(self, quorum: Quorum) -> None:
        before = self._server.before
        veterans = [m for m in quorum.members if m.id.text in before.members and m.step > 0]
        # A server that crashes may have issued some steps more than it has written down.
        record = min(self.highest_step, before.max_step) if self._is_first else self.highest_step
        assert veterans or quorum.max_step >= record or record <= 1, "the job is taken back"

    def _check_majority(self, names: list[str]) -> None:
        assert self.situation is not None
        assert 2 * len(names) > len(self.situation.members), "half of the healthy is not enough"

    def _check_bounds(self) -> None:
        table = self._server.machine.table
        assert len(table.slots) <= LIMITS.max_replicas
        assert len(table.lineage.tombs()) <= LIMITS.max_buried
        assert len(table.roll) <= LIMITS.max_replicas

    def decided(self, situation: Situation, rules: Rules, now_s: float) -> Decision:
        """The decision, compared with the simple one."""
        self.situation = situation
        decision = REAL_DECIDE(situation, rules, now_s)
        wanted = expected(situation, rules, now_s)
        if isinstance(decision, Ready):
            assert [member.id.text for member in decision.members] == wanted
        else:
            assert decision.reason == wanted
        return decision


REAL_DECIDE = quorum_book.decide


def is_end(told: Quorum | Notice | Refusal) -> bool:
    """Whether an incarnation that is told this must end itself."""
    if isinstance(told, Notice):
        return told.kind in (NoticeKind.SUPERSEDED, NoticeKind.EVICTED)
    return told in (Refusal.SUPERSEDED, Refusal.EVICTED)
