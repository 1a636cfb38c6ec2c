"""Who is alive: a roll call that is never over.

Everybody calls out now and then. Who has not been heard for longer than the timeout counts as dead
until the next call. The book holds one line per name, and time is handed in with each question.
"""

from lighthouse.model import Key


class Liveness:
    """When each replica was last heard."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._heard_s: dict[Key, float] = {}

    def heard(self, key: Key, now_s: float) -> None:
        """Note a sign of life. A late note never sets the time back."""
        self._heard_s[key] = max(now_s, self._heard_s.get(key, now_s))

    def drop(self, key: Key) -> None:
        """Strike a name out: it is dead now, whatever it said before."""
        self._heard_s.pop(key, None)

    def lives(self, key: Key, now_s: float) -> bool:
        """Whether it was heard less than the timeout ago."""
        heard_s = self._heard_s.get(key)
        return heard_s is not None and now_s - heard_s < self._timeout_s

    def living(self, now_s: float) -> frozenset[Key]:
        """All that were heard less than the timeout ago."""
        return frozenset(key for key, at_s in self._heard_s.items() if now_s - at_s < self._timeout_s)

    def age_s(self, key: Key, now_s: float) -> float | None:
        """Seconds since it was last heard, or None if it is not in the book."""
        heard_s = self._heard_s.get(key)
        return None if heard_s is None else now_s - heard_s

    def __len__(self) -> int:
        return len(self._heard_s)
