"""What a rank is still to be told on its stream. For one event loop; bounded."""

import asyncio
from collections import deque

from lighthouse.model import Notice, Refusal

_MAX_ITEMS = 64


class Outbox:
    """Notices in order, and at the end perhaps a refusal, which ends the stream."""

    def __init__(self) -> None:
        # A process that is frozen reads nothing: of what piles up, the latest matters.
        self._items: deque[Notice | Refusal] = deque(maxlen=_MAX_ITEMS)
        self._filled = asyncio.Event()

    def put(self, item: Notice | Refusal) -> None:
        """Add a notice or the end. Never blocks."""
        self._items.append(item)
        self._filled.set()

    async def take(self) -> Notice | Refusal:
        """The next item, waited for. Cancelling loses nothing."""
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        return self._items.popleft()
