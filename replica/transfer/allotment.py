"""Which chunk is asked of which donor next: all from one queue, a failed one elsewhere first. Pure."""

from collections import deque
from collections.abc import Set as AbstractSet


class Allotment:
    """The chunks of one state on their way. Whoever shares it between threads holds a lock."""

    def __init__(self, chunks: int) -> None:
        self._pending = deque(range(chunks))
        self._failed_with: dict[int, set[str]] = {}
        self._missing = chunks
        self.in_flight = 0

    @property
    def complete(self) -> bool:
        """Whether every chunk is verified."""
        return self._missing == 0

    @property
    def pending(self) -> bool:
        """Whether there are chunks that nobody is asked for now."""
        return bool(self._pending)

    def has_work(self, donor: str, usable: AbstractSet[str]) -> bool:
        """Whether `take` would give this donor a chunk."""
        return self._position(donor, usable) is not None

    def take(self, donor: str, usable: AbstractSet[str]) -> int | None:
        """The next chunk to ask this donor for, or None when it can only wait.

        A chunk is not asked again of a donor that failed on it, while a `usable` one has not.
        """
        position = self._position(donor, usable)
        if position is None:
            return None
        chunk = self._pending[position]
        del self._pending[position]
        self.in_flight += 1
        return chunk

    def verified(self, chunk: int) -> None:
        """A chunk that was taken is there and right."""
        self.in_flight -= 1
        self._missing -= 1
        self._failed_with.pop(chunk, None)

    def failed(self, chunk: int, donor: str) -> None:
        """A chunk that was taken did not come, or came wrong: it is asked again, before the others."""
        self.in_flight -= 1
        self._failed_with.setdefault(chunk, set()).add(donor)
        self._pending.appendleft(chunk)

    def _position(self, donor: str, usable: AbstractSet[str]) -> int | None:
        for position, chunk in enumerate(self._pending):
            failed = self._failed_with.get(chunk, set())
            if donor not in failed or usable <= failed:
                return position
        return None
