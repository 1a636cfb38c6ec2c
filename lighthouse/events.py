"""What happens, handed to whoever watches, as it happens. For one event loop; bounded."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

MAX_WATCHERS = 64
MAX_UNREAD = 1000

Event = dict[str, Any]


class EventWatcher:
    """A queue of events that one watcher has not read yet. A slow one loses the oldest."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._unread: deque[Event] = deque()
        self._lost = 0
        self._filled = asyncio.Event()
        self._ended = False

    def put(self, event: Event) -> None:
        """Add an event, if it is about the job that is watched."""
        if self._job and event.get("job") != self._job:
            return
        if len(self._unread) >= MAX_UNREAD:
            self._unread.popleft()
            self._lost += 1
        self._unread.append(event)
        self._filled.set()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        self._filled.set()

    async def take(self) -> Event | None:
        """The next event, waited for; None when there will be none."""
        while not self._unread:
            if self._ended:
                return None
            self._filled.clear()
            await self._filled.wait()
        if self._lost:
            lost, self._lost = self._lost, 0
            return {"t": self._unread[0]["t"], "kind": "events_lost", "count": lost}
        return self._unread.popleft()


class EventHub:
    """All watchers of one server."""

    def __init__(self) -> None:
        self._watchers: set[EventWatcher] = set()

    def publish(self, wall_s: float, kind: str, fields: Mapping[str, object]) -> None:
        """Hand an event to all watchers. Never blocks; the fields hold no secret."""
        if self._watchers:
            event = {"t": round(wall_s, 6), "kind": kind, **fields}
            for watcher in self._watchers:
                watcher.put(event)

    def watch(self, job: str) -> EventWatcher | None:
        """Begin to watch a job, or all with an empty name. None: there are too many watchers."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        watcher = EventWatcher(job)
        self._watchers.add(watcher)
        return watcher

    def drop(self, watcher: EventWatcher) -> None:
        """The watcher has gone."""
        self._watchers.discard(watcher)

    def end(self) -> None:
        """The server goes down."""
        for watcher in self._watchers:
            watcher.end()
