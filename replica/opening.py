"""How an attempt begins: a quorum, newer state if there is some, and the agreement of the ranks.

Every rank walks the same way, whatever failed before: quorum, agreement, vote.
"""

import time
from enum import Enum
from typing import TYPE_CHECKING

from lighthouse.client import Phase
from replica.attempt import Attempt
from replica.averaging import ReduceFailed
from replica.bridge.manager import Start
from replica.errors import RestartError, UserError
from replica.goodput import Doing, Fate
from replica.ledger import EventKind, Outcome, Reason
from replica.rounds import Peer, Plan, deal
from replica.saves import LastSave
from replica.step import Ballot, agree
from replica.transfer import Fault

if TYPE_CHECKING:
    from replica.group import ReplicaGroup


# A state of so many bytes that comes more slowly than this probably took the wrong network.
LARGE_BYTES = 64_000_000
SLOW_MB_PER_S = 100.0


class Turn(Enum):
    """What follows a quorum that gives no attempt to walk."""

    AGAIN = "again"
    LEAVE = "leave"


class Opening:
    """Begins the attempts of one group, one after the other. Belongs to the training thread."""

    def __init__(self, group: "ReplicaGroup") -> None:
        self._group = group
        self._members: tuple[int, ...] = ()

    def next_turn(self) -> Attempt | Turn:
        """One quorum: an attempt to walk, or what to do instead. Blocks until there is one."""
        group = self._group
        group.stopwatch.begin_attempt()
        if self._must_leave() and group.step < group.config.steps:
            return Turn.LEAVE
        time.sleep(group.failures.pause_s)
        group.stream.progress(group.step, Phase.QUORUM)
        with group.stopwatch.time(Doing.QUORUM), group.notices.asking(), group.quorum_wait.waiting():
            start = group.bridge.begin()
        self._note_quorum(start)
        self._note_incidents(start)
        self._end_where_lost(start)
        step = max((peer.step for peer in start.peers), default=group.step) if start.changed else group.step
        plan = self._plan(start, step)
        problem = start.error or self._misfit(start, step)
        if not self._agree(start, plan, step, problem):
            self._sit_out(start, plan, problem)
            return Turn.AGAIN
        return self._enter(start, plan)

    def _enter(self, start: Start, plan: Plan) -> Attempt | Turn:
        group = self._group
        if start.stash is not None:
            with group.stopwatch.time(Doing.HEAL):
                self._adopt(start, plan.step)
        if plan.held_by(group.config.group) != group.sum.held:
            group.sum.reset()
        if group.step >= group.config.steps:
            return self._close(start)
        rounds = len(plan.rounds_of(group.config.group))
        group.stream.progress(group.step, Phase.COMPUTE, rounds=rounds)
        group.stopwatch.enter(Doing.COMPUTE)
        return Attempt(group, start, plan)

    def _must_leave(self) -> bool:
        """Whether any rank of the group was asked to leave; all of them do so at the same boundary."""
        group = self._group
        group.notices.raise_if_ended()
        rows = group.ranks.share([int(group.notices.draining)])
        return any(row[0] for row in rows)

    def _plan(self, start: Start, step: int) -> Plan:
        """Deal the rounds. Where the quorum has not changed, all its members have committed the last step."""
        group = self._group
        members = start.peers
        if not start.changed:
            members = tuple(Peer(group=peer.group, step=step) for peer in start.peers)
        if not members:
            members = (Peer(group=group.config.group, step=step, held=group.sum.held),)
        return deal(step=step, quorum_id=start.quorum_id, rounds=group.rounds, members=members)

    def _agree(self, start: Start, plan: Plan, step: int, problem: str | None) -> bool:
        """Whether every rank of the group can take part in the same attempt at the same step."""
        group = self._group
        if problem is not None:
            group.warn(f"step {group.step}: cannot take part in quorum {start.quorum_id}: {problem}")
        holds = step if start.stash is not None else group.step
        ballot = Ballot(
            ready=problem is None and holds == step,
            quorum_id=start.quorum_id,
            step=holds,
            plan=plan.fingerprint,
        )
        return agree(group.ranks.share(ballot.values()))

    def _misfit(self, start: Start, step: int) -> str | None:
        received = start.heal.received
        if start.stash is not None and (received is None or received.step != step):
            return f"the state that came is not that of step {step}"
        return None

    def _adopt(self, start: Start, step: int) -> None:
        """Take over the fetched state: weights and step number move together, on all ranks."""
        group, received = self._group, start.heal.received
        assert start.stash is not None
        assert received is not None
        group.adopt(start.stash, step)
        rate = received.bytes / received.seconds / 1e6 if received.seconds > 0 else 0.0
        group.record.event(
            EventKind.HEAL,
            digest=group.last_digest or None,
            healed_from=start.healed_from,
            step=step,
            quorum_id=start.quorum_id,
            bytes=received.bytes,
            seconds=received.seconds,
            mb_per_s=round(rate, 1),
        )
        if received.bytes > LARGE_BYTES and rate < SLOW_MB_PER_S:
            group.warn(
                f"the state came at {rate:.0f} MB/s: check that the donors' advertised addresses are on the "
                f"fast network (--advertise-addr)"
            )

    def _note_incidents(self, start: Start) -> None:
        """Write down what was wrong with donors, by their group and the tensor it was found at."""
        group = self._group
        for donor, incident in start.heal.incidents:
            group.record.event(
                EventKind.HEAL_INCIDENT,
                donor=donor,
                address=incident.donor,
                fault=incident.fault.value,
                tensor=incident.tensor,
                reason=incident.detail,
            )

    def _end_where_lost(self, start: Start) -> None:
        """Raises RestartError or UserError where the heal left this incarnation nothing to go on with."""
        heal, group = start.heal, self._group
        refused = heal.refused and heal.in_place
        if heal.torn or refused:
            group.record.event(EventKind.HEAL_FAILED, reason=start.error or "the state did not come")
        if heal.torn:
            raise RestartError("a heal broke off, and left this group with neither the old state nor the new")
        if refused:
            said = sorted({each.detail for _, each in heal.incidents if each.fault is Fault.REFUSED})
            why = "; ".join(said) or start.error
            raise UserError(
                f"the groups that have the state of this job refuse this one ({why}): give all groups the "
                "same --token-file, and certificates of the same CA"
            )

    def _sit_out(self, start: Start, plan: Plan, problem: str | None) -> None:
        """Walk an attempt that this group cannot take part in, so that it does not hold up others.

        A joiner whose heal failed adds zeros: the others' sum lacks nothing. A group that rounds
        are dealt to, or whose process group did not come up, declares the attempt over instead;
        without a Lighthouse that can tell the others, zeros are the best that it can do.
        """
        group = self._group
        joining = plan.step > group.step
        reason = _reason(start, joining=joining)
        cause = problem or "another rank of the group could not take part"
        group.bridge.set_step(group.step)
        if start.heal.in_place and start.stash is not None:
            raise RestartError("a heal came about on some ranks of this group only")
        if reason is not Reason.HEAL_FAILED:
            group.stream.abandon(start.quorum_id, cause)
        with group.stopwatch.time(Doing.REDUCE):
            if start.configured and (joining or not group.told_of_deaths):
                group.sum.reduce(group.bridge.process_group, contribute=False)
            group.bridge.vote(False)
        if reason is Reason.HEAL_FAILED:
            group.record.event(EventKind.HEAL_FAILED, reason=cause)
        group.record.attempt(
            step=group.step,
            quorum_id=start.quorum_id,
            outcome=Outcome.RETRIED,
            reason=reason,
            participants=tuple(sorted(peer.group for peer in start.peers)),
            rounds=group.held_rounds(),
            seconds=group.stopwatch.seconds(),
        )
        group.stopwatch.end_attempt(Fate.KEPT)
        group.attempt_ended(reason)

    def _close(self, start: Start) -> Turn:
        """At the end: make the last state durable, and let one that is behind heal, before any leaves.

        When the one that writes dies over it, or cannot, another does so in the next quorum, also one
        that has only just healed.
        """
        group = self._group
        last = None
        if group.saves is not None:
            newest = [peer.group for peer in start.peers if not start.changed or peer.step == group.step]
            with group.stopwatch.time(Doing.SAVE):
                last = group.saves.at_the_end(start.quorum_id, newest or [group.config.group])
            if last in (LastSave.ATTEMPT_OVER, LastSave.IN_VAIN):
                return Turn.AGAIN if last is LastSave.ATTEMPT_OVER else Turn.LEAVE
        # As in a step: gloo ends the processes of all when members bring buffers of different lengths.
        result = group.sum.reduce(group.bridge.process_group, contribute=False)
        failed = isinstance(result, ReduceFailed)
        if isinstance(result, ReduceFailed):
            group.warn(f"a group left before all had the last step ({result.error})")
        if group.saves is None or last is not LastSave.UNKNOWN:
            return Turn.LEAVE
        # All that bring their share to that sum know the last step to be durable, but for those that
        # have just healed: without it, this group may be the only one left that can save it.
        if any(row[0] for row in group.ranks.share([failed])):
            return Turn.AGAIN
        group.saves.last = LastSave.DURABLE
        return Turn.LEAVE

    def _note_quorum(self, start: Start) -> None:
        if not start.changed:
            return
        record = self._group.record
        members = tuple(sorted(peer.group for peer in start.peers))
        record.group_event(
            EventKind.QUORUM, step=self._group.step, quorum_id=start.quorum_id, participants=members
        )
        if gone := sorted(set(self._members) - set(members)):
            record.group_event(EventKind.DEATH_SEEN, dead=gone, quorum_id=start.quorum_id)
        self._members = members


def _reason(start: Start, *, joining: bool) -> Reason:
    if not start.configured:
        return Reason.CONFIGURE_FAILED
    return Reason.HEAL_FAILED if joining else Reason.GROUP_DISAGREED
