"""Tells people what a group waits for, when it gets no quorum for long."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

EVERY_S = 30.0
LOOK_S = 5.0


class QuorumWait:
    """Owned by the training thread, which says when it waits; a thread of its own looks every few seconds.

    `ask` gives the Lighthouse's status document, None when it does not answer; it is asked only while
    a wait is long. `say` takes one sentence. Both are called on that thread.
    """

    def __init__(
        self,
        ask: Callable[[], Mapping[str, Any] | None],
        *,
        job: str,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `start`, nobody is told anything."""
        self._ask, self._job, self._say, self._clock = ask, job, say, clock
        self._since_s: float | None = None
        self._told_s = float("-inf")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headway-quorum-wait", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the block this group waits for a quorum."""
        self._since_s = self._clock()
        try:
            yield
        finally:
            self._since_s = None

    def look(self) -> None:
        """Say what is waited for, if it is waited for long and that was not said just now."""
        since_s, now_s = self._since_s, self._clock()
        if since_s is None or now_s - max(since_s, self._told_s) < EVERY_S:
            return
        self._told_s = now_s
        why = self._why()
        if self._since_s == since_s:  # the quorum has not come meanwhile
            self._say(f"no quorum for {now_s - since_s:.0f} s: {why}")

    def _why(self) -> str:
        document = self._ask()
        if document is None:
            return "the Lighthouse does not answer"
        why = next((each["forming"]["why"] for each in document["jobs"] if each["job"] == self._job), None)
        return "the Lighthouse does not know this job" if why is None else f"the Lighthouse says: {why}"

    def close(self) -> None:
        """End the thread. Does nothing the second time; does not wait for an answer that is on its way."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            self.look()
