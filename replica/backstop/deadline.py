"""Work that must not hold anybody up: done on a thread of its own, which is left behind when it hangs."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TooLateError(Exception):
    """What was begun did not end in time, and goes on alone. Its text is the rest of a sentence."""


class Deadline:
    """A moment `timeout_s` seconds from now, by which all that is `run` must have ended.

    A store that hangs cannot be interrupted from outside. So each piece of work gets a daemon thread,
    which stays behind when the store hangs for good and does not keep the process alive. Such work
    asks `passed` before it does anything that others see.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._timeout_s = clock, timeout_s
        self._end_s = clock() + timeout_s

    @property
    def passed(self) -> bool:
        """Whether nobody waits any more for what is being done."""
        return self._clock() >= self._end_s

    def missed(self) -> TooLateError:
        """What is raised by work that finds the deadline `passed`."""
        return TooLateError(
            f"it was not done within {self._timeout_s:g} s: is the store reachable, and fast enough?"
        )

    def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, or what it raises. Blocks; raises TooLateError at the deadline."""
        done: list[tuple[T | None, BaseException | None]] = []

        def run_and_keep() -> None:
            try:
                done.append((work(), None))
            except BaseException as error:
                done.append((None, error))

        thread = threading.Thread(target=run_and_keep, name="backstop-io", daemon=True)
        thread.start()
        thread.join(max(0.0, self._end_s - self._clock()))
        if not done:
            raise self.missed()
        result, error = done[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]
