"""A simulated rank, which walks attempts as `Opening` and `Attempt` do, by the real decisions.

Only the thin shell is drawn here: quorum, introduction, heal, agreement, rounds, sum, vote. Where a
rank waits, it yields for how many seconds at most.
"""

from collections import Counter
from collections.abc import Generator, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from sim_step_judge import Token
from sim_step_wire import Channel, SimQuorum
from sim_step_world import FOREVER_S, Died, Fault, Point

from replica import rounds, step
from replica.averaging import Reduced, ReduceFailed
from replica.ledger import Outcome, Reason
from replica.rounds import Peer, Plan
from replica.step import Ballot

if TYPE_CHECKING:
    from sim_step_group import SimGroup

ROUND_S = 1.5
CONFIGURE_S = 5.0
HEAL_S = 5.0
COLLECTIVE_S = 20.0
RETRY_S = 0.3
CAN_FAIL = frozenset({Point.CONFIGURE, Point.HEAL, Point.REDUCE})

Waits = Generator[float, None, Any]


class Cause(Enum):
    """Why a rank forgets the rounds that it holds."""

    COMMITTED = "committed"
    HEALED = "healed"
    NOT_KEPT = "not kept by the plan"
    NON_FINITE = "not finite"


class SimStart(NamedTuple):
    """How an attempt begins on this rank; `stash` is the step and state that it fetched."""

    quorum: SimQuorum
    changed: bool
    failed: bool
    stash: tuple[int, int] | None = None


class SimRank:
    """`state` numbers its weights, `held` are the rounds whose gradients are in its sum."""

    def __init__(self, group: "SimGroup", rank: int) -> None:
        self.group = group
        self.rank = rank
        self.world = group.job.world
        self.judge = group.job.judge
        self.step = 0
        self.state = 0
        self.held: dict[int, Token] = {}
        self.failures = 0
        self.vain = 0
        self.point = Point.QUORUM
        self.life = self._live()
        self.epoch = 0
        self.dead = False
        self.frozen_until_s = 0.0
        self.staged: tuple[int, int] | None = None
        self._over = -1
        self._answers: list[SimQuorum] = []
        self._seen = -1
        self._circles = 0
        self._channel: Channel | None = None
        self._usable = False
        self._meetings = 0
        self._peers: tuple[Peer, ...] = ()

    def __repr__(self) -> str:
        return f"{self.group} rank {self.rank} at step {self.step}"

    # What others do to it.

    def die(self) -> None:
        if not self.dead:
            self.dead = True
            if self._channel is not None:
                self._channel.close()

    def hear_over(self, quorum_id: int) -> None:
        self._over = max(self._over, quorum_id)
        self.world.wake(self)

    def hear_quorum(self, quorum: SimQuorum) -> None:
        self._answers.append(quorum)
        self.world.wake(self)

    def _strikes(self, point: Point) -> bool:
        """Whether what begins here is to fail on this rank. It may also freeze, or die, here."""
        self.point = point
        world = self.world
        if world.random.random() >= world.rate:
            return False
        fault = world.random.choice(world.faults)
        self.group.job.strike(fault, self)
        if self.dead:
            raise Died
        on_group = fault is Fault.FAIL_GROUP and point is Point.CONFIGURE
        if on_group:
            self.group.unlucky_quorum = self._seen
        fails = on_group or (fault is Fault.FAIL and point in CAN_FAIL)
        world.struck[fault, point] += fails
        return fails

    # One attempt after the other.

    def _live(self) -> Waits:
        while True:
            start = yield from self._begin()
            number = self._step_to_try(start)
            plan = self._plan(start, number)
            if (yield from self._agree(start, plan, number)):
                self._enter(start, plan)
                heard = yield from self._compute(start, plan)
                result = ReduceFailed(error="over") if heard else (yield from self._reduce(contribute=True))
                yield from self._end(result)
            else:
                yield from self._sit_out(plan)

    def _begin(self) -> Waits:
        self._strikes(Point.QUORUM)
        self._answers.clear()
        self.group.ask()
        while not self._answers:
            yield FOREVER_S
        quorum = self._answers[0]
        changed, self._seen = quorum.id != self._seen, quorum.id
        if changed and not (yield from self._configure(quorum)):
            return SimStart(quorum, changed, failed=True)
        if self.step == quorum.max_step:
            self.staged = (self.step, self.state)
            return SimStart(quorum, changed, failed=False)
        stash = yield from self._heal(quorum)
        return SimStart(quorum, changed, failed=stash is None, stash=stash)

    def _configure(self, quorum: SimQuorum) -> Waits:
        """Leave the old channel, join the new one, and tell the other members what is held."""
        if self._channel is not None:
            self._channel.close()
        self._usable, self._peers, self._meetings = False, (), 0
        self._channel = self.group.job.lighthouse.channel(quorum, self.rank)
        if self._strikes(Point.CONFIGURE) or self.group.unlucky_quorum == quorum.id:
            return False
        self.judge.introduced(self, quorum)
        self._usable = True
        row = yield from self._meet("introduce", (self.step, rounds.as_mask(self.held)), CONFIGURE_S)
        if row is None:
            return False
        self._peers = tuple(
            Peer(group=group, step=row[group][0], held=self._read(row[group][1])) for group in sorted(row)
        )
        return True

    def _read(self, mask: bytes) -> frozenset[int]:
        """What a member holds. A mask that is damaged on the way to one rank is for the siblings to find."""
        held = rounds.from_mask(mask)
        has_siblings = self.rank == 0 and self.group.size > 1
        if has_siblings and self.world.strikes(Fault.DAMAGE, self.world.rate, Point.CONFIGURE):
            held ^= {self.world.random.randrange(self.group.job.rounds)}
        return held

    def _heal(self, quorum: SimQuorum) -> Waits:
        """Step and state of the newest member, or None where they do not come."""
        if self._strikes(Point.HEAL):
            return None
        newest = [
            group for group, at in zip(quorum.members, quorum.steps, strict=True) if at == quorum.max_step
        ]
        donor = newest[self.group.number % len(newest)].ranks[self.rank]
        deadline_s = self.world.now_s + HEAL_S
        while not donor.dead and self._over < quorum.id and self.world.now_s < deadline_s:
            if (staged := donor.staged) is not None and staged[0] == quorum.max_step:
                yield self.world.random.random()
                return None if donor.dead else staged
            yield RETRY_S
        return None

    def _step_to_try(self, start: SimStart) -> int:
        return max((peer.step for peer in self._peers), default=self.step) if start.changed else self.step

    def _plan(self, start: SimStart, number: int) -> Plan:
        """Where the quorum has not changed, all its members have committed the last step."""
        members = self._peers
        if not start.changed:
            members = tuple(Peer(group=peer.group, step=number) for peer in self._peers)
        if not members:
            members = (Peer(group=self.group.number, step=number, held=frozenset(self.held)),)
        return rounds.deal(
            step=number, quorum_id=start.quorum.id, rounds=self.group.job.rounds, members=members
        )

    def _agree(self, start: SimStart, plan: Plan, number: int) -> Waits:
        self._strikes(Point.AGREE)
        holds = self.step if start.stash is None else start.stash[0]
        ballot = Ballot(
            ready=not start.failed and holds == number,
            quorum_id=start.quorum.id,
            step=holds,
            plan=plan.fingerprint,
        )
        return step.agree((yield from self._share("agree", ballot.values())))

    def _enter(self, start: SimStart, plan: Plan) -> None:
        if start.stash is not None:
            self.step, self.state = start.stash
            self.forget(Cause.HEALED)
            self.judge.healed(self)
        if plan.held_by(self.group.number) != self.held.keys():
            self.forget(Cause.NOT_KEPT)
        self.judge.entered(self, plan, start.quorum, changed=start.changed)

    def forget(self, _cause: Cause) -> None:
        """Drop all rounds."""
        self.held.clear()

    def _compute(self, start: SimStart, plan: Plan) -> Waits:
        """Run the rounds that are dealt; whether any rank has heard that the attempt is over."""
        for index in plan.rounds_of(self.group.number):
            self._strikes(Point.ROUND)
            yield ROUND_S * self.world.random.random()
            self.judge.ran(self, index, start.quorum, changed=start.changed)
            bad = self.world.strikes(Fault.NON_FINITE, self.world.rate / 5, Point.ROUND)
            self.held[index] = Token(self.state, index, bad)
            if any((yield from self._share(("round", index), self._over >= start.quorum.id))):
                return True
        return False

    def contribution(self, *, contribute: bool) -> tuple[Token, ...]:
        """What this rank adds to the sum over groups."""
        return tuple(self.held.values()) if contribute else ()

    def _reduce(self, *, contribute: bool) -> Waits:
        if self._strikes(Point.REDUCE):
            self._leave()
            return ReduceFailed(error="a private reason")
        row = yield from self._meet("sum", self.contribution(contribute=contribute), COLLECTIVE_S)
        if row is None:
            return ReduceFailed(error="a member is gone")
        return self._reduced([token for tokens in row.values() for token in tokens])

    def _reduced(self, tokens: list[Token]) -> tuple[Reduced, list[Token]]:
        count = Counter(token.round for token in tokens)
        every = range(self.group.job.rounds)
        result = Reduced(
            counts=tuple(count[index] for index in every),
            losses=tuple(0.0 for _ in every),
            bad_rounds=tuple(sorted({token.round for token in tokens if token.bad})),
        )
        return result, tokens

    def _end(self, answer: ReduceFailed | tuple[Reduced, list[Token]]) -> Waits:
        """Vote, and commit or give up."""
        result, tokens = (answer, []) if isinstance(answer, ReduceFailed) else answer
        reason = step.verdict(result)
        if reason is Reason.REDUCE_FAILED:
            if self._over < self._seen:
                self._abandon()
        else:
            self.judge.summed(self, tokens)
        if (yield from self._vote(reason is Reason.NONE)):
            self._commit(tokens)
            self._strikes(Point.COMMITTED)
            return
        if any((yield from self._share("give up", reason is Reason.NON_FINITE))):
            reason = Reason.NON_FINITE
            self.judge.discarded(self)
        if step.outcome(reason) is Outcome.DISCARDED:
            self.forget(Cause.NON_FINITE)

    def _commit(self, tokens: Iterable[Token]) -> None:
        self.state = self.judge.committed(self, tokens, self._seen)
        self.step += 1
        self.forget(Cause.COMMITTED)

    def _sit_out(self, plan: Plan) -> Waits:
        """Walk an attempt without taking part: a joiner adds zeros, others end it for all."""
        joining, configured = plan.step > self.step, self._usable
        if not (joining and configured):
            self._abandon()
        if configured and (joining or not self.group.job.lighthouse.tells):
            yield from self._reduce(contribute=False)
        yield from self._vote(False)

    def _abandon(self) -> None:
        """Tell the Lighthouse that this rank gives the attempt up."""
        lighthouse, quorum_id = self.group.job.lighthouse, self._seen
        if not self.world.strikes(Fault.LOSE, 0.3):
            self.world.after(self.world.delay_s(), lambda: lighthouse.hear_abandoned(quorum_id))

    def _vote(self, willing: bool) -> Waits:
        """All ranks of the group commit, or none."""
        self._strikes(Point.REDUCED)
        committed = all((yield from self._share("vote", willing)))
        self._strikes(Point.VOTE)
        self.failures = 0 if committed else self.failures + 1
        self.vain += not committed
        return committed

    # Where ranks meet.

    def _share(self, tag: object, value: object) -> Waits:
        """What each rank of the group brings; all must come to the same meeting."""
        circle, size = self.group.circle(self._circles), self.group.size
        self._circles += 1
        circle[self.rank] = (tag, value)
        if len(circle) == size:
            self.judge.met(self.group.ranks, [each[0] for each in circle.values()])
            for rank in self.group.ranks:
                if rank is not self:
                    self.world.wake(rank)
        while len(circle) < size:
            yield FOREVER_S
        return [circle[rank][1] for rank in range(size)]

    def _meet(self, tag: str, brought: object, timeout_s: float) -> Waits:
        """What each group of the quorum brings, or None: a member left, or the attempt is over.

        When all have come, some may still have all they need while others do not.
        """
        channel, deadline_s = self._channel, self.world.now_s + timeout_s
        assert channel is not None
        meeting = channel.meeting(self._meetings, tag)
        self._meetings += 1
        meeting[self.group.number] = brought
        if len(meeting) == channel.size:
            channel.wake()
        while True:
            disturbed = channel.closed or self._over >= self._seen
            complete = len(meeting) == channel.size
            if complete and (not disturbed or self.world.random.random() < 0.5):
                return meeting
            if complete or disturbed or self.world.now_s >= deadline_s:
                self._leave()
                return None
            channel.waiting.append(self)
            yield deadline_s - self.world.now_s

    def _leave(self) -> None:
        self._usable = False
        if self._channel is not None:
            self._channel.close()
