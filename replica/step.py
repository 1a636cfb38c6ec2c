"""Pure decisions of a step: do the ranks agree, may the attempt be committed, what is kept of it?"""

from collections.abc import Sequence
from dataclasses import dataclass

from replica.averaging import Reduced, ReduceFailed
from replica.ledger import Outcome, Reason


@dataclass(frozen=True, kw_only=True)
class Ballot:
    """What one rank brings to the agreement at the start of an attempt.

    ready: its quorum, process group and heal all succeeded. step: of the state that it would train
    on, after the heal. plan: fingerprint of the plan that it derived.
    """

    ready: bool
    quorum_id: int
    step: int
    plan: int

    def values(self) -> tuple[int, int, int, int]:
        """As integers, in the order that `agree` reads them."""
        return (int(self.ready), self.quorum_id, self.step, self.plan)


def agree(ballots: Sequence[Sequence[int]]) -> bool:
    """Whether all ranks of a group are ready for the very same attempt."""
    first = ballots[0]
    return first[0] == 1 and all(tuple(ballot) == tuple(first) for ballot in ballots)


def verdict(result: Reduced | ReduceFailed) -> Reason:
    """Why an attempt whose sum is `result` must not be committed; Reason.NONE when it may be."""
    if isinstance(result, ReduceFailed):
        return Reason.REDUCE_FAILED
    if result.missing_rounds:
        return Reason.ROUNDS_MISSING
    if not result.finite:
        return Reason.NON_FINITE
    return Reason.NONE


def outcome(reason: Reason) -> Outcome:
    """What becomes of an attempt and of the rounds that were finished in it.

    They are kept for the next attempt at the step, but for a gradient that is not finite, which may
    be a fault of the hardware: computed again, it may be right.
    """
    if reason is Reason.NONE:
        return Outcome.COMMITTED
    return Outcome.DISCARDED if reason is Reason.NON_FINITE else Outcome.RETRIED
