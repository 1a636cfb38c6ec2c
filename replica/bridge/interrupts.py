"""How a wait for peers ends before its time: done, declared over, or out of patience."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class AttemptOverError(RuntimeError):
    """Another member has died or given up: what was waited for will not come."""


class Interrupts(Protocol):
    """What can end the waits of an attempt before their time."""

    def over(self, quorum_id: int) -> str | None:
        """Why the attempt of this quorum is over, or None."""

    def waking(self, event: threading.Event) -> AbstractContextManager[None]:
        """Within the block, set `event` when `over` may have changed."""


class Undisturbed:
    """No interrupts: only peers and deadlines end a wait."""

    def over(self, quorum_id: int) -> str | None:
        """Never over."""
        return None

    def waking(self, event: threading.Event) -> AbstractContextManager[None]:
        """Never wakes."""
        return nullcontext()


def wait_for(
    is_done: Callable[[], bool],
    wake: threading.Event,
    *,
    what: str,
    timeout_s: float,
    interrupts: Interrupts,
    quorum_id: int,
) -> AttemptOverError | TimeoutError | None:
    """Block until `is_done()`, or the attempt is over, or `timeout_s` has passed; done wins.

    `what` is waited for, in words. Whoever makes `is_done` true must set `wake` after it. Returns
    None when done, else an error that was not raised, and so holds no frame and nothing in one.
    """
    deadline = time.monotonic() + timeout_s
    with interrupts.waking(wake):
        while True:
            wake.clear()
            if is_done():
                return None
            if (cause := interrupts.over(quorum_id)) is not None:
                return AttemptOverError(cause)
            if not wake.wait(max(0.0, deadline - time.monotonic())):
                return TimeoutError(f"{what} did not come within {timeout_s:g} s")
