"""Callers that were turned away: how many by method, and when that is worth a line in the log. No I/O."""

from collections import Counter

NOTE_EVERY_S = 10.0


class TurnedAway:
    """A flood costs one line in NOTE_EVERY_S, and a number for each method that exists."""

    def __init__(self) -> None:
        self.by_method: Counter[str] = Counter()
        self._unsaid = 0
        self._said_at_s = float("-inf")

    def count(self, method: str, now_s: float) -> int:
        """One more. How many to write a line about now, 0 for no line."""
        self.by_method[method] += 1
        self._unsaid += 1
        if now_s - self._said_at_s < NOTE_EVERY_S:
            return 0
        unsaid, self._unsaid, self._said_at_s = self._unsaid, 0, now_s
        return unsaid

    def ignore(self, method: str) -> None:
        """One more that nobody needs to know of: a pulse that came before its group had attached."""
        self.by_method[method] += 1
