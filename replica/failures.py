"""Failures in a row: how long to pause before the next try, and when to stop trying. Pure."""

from replica.errors import RestartError, UserError
from replica.ledger import Reason

MAX_FAILED_HEALS = 5
MAX_FAILED_STARTS = 20
LONGEST_PAUSE_S = 2.0
NOT_STARTED = frozenset({Reason.CONFIGURE_FAILED, Reason.GROUP_DISAGREED, Reason.HEAL_FAILED})


class Failures:
    """Counts the attempts of one group that ended in the same way, one after the other.

    A group that holds the job's state never gives up because others cannot be reached: its exit
    could lose the state. It pauses longer and longer instead.
    """

    def __init__(self, *, max_non_finite: int) -> None:
        self._max_non_finite = max_non_finite
        self._last = Reason.NONE
        self._in_a_row = 0

    def count(self, reason: Reason, *, step: int) -> None:
        """Take in how an attempt ended; `step` is the number of steps that the state now holds.

        Raises UserError for too many losses that are not finite, RestartError where a new
        incarnation may do better.
        """
        self._in_a_row = self._in_a_row + 1 if reason is self._last else 1
        self._last = reason
        if reason is Reason.NON_FINITE and self._in_a_row >= self._max_non_finite:
            raise UserError(
                f"step {step} gave a loss or gradient that is not finite {self._in_a_row} times in a row: "
                f"lower the learning rate or look at the data"
            )
        if reason is Reason.HEAL_FAILED and self._in_a_row >= MAX_FAILED_HEALS:
            raise RestartError(f"no donor could give this group the job's state in {self._in_a_row} tries")
        if reason in NOT_STARTED and self._in_a_row >= MAX_FAILED_STARTS and step == 0:
            raise RestartError(f"this group could not take part in {self._in_a_row} attempts in a row")

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next attempt: none after the first failure, then doubling."""
        if self._last not in NOT_STARTED or self._in_a_row < 2:
            return 0.0
        return float(min(LONGEST_PAUSE_S, 0.05 * 2 ** min(self._in_a_row - 2, 16)))
