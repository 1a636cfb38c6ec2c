"""Where time comes from: the system, a test, or the system without the pauses of this process."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: one that only rises, for durations, and one that people can read."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes back. Only differences mean anything."""

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC. May jump when somebody sets the machine's clock."""


class SystemClock:
    """The clocks of the operating system."""

    def now_s(self) -> float:
        """Seconds since some point in the past, monotonic."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return time.time()


class ManualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, now_s: float = 0.0, wall_s: float = 1.8e9) -> None:
        self._now_s = now_s
        self._wall_s = wall_s

    def now_s(self) -> float:
        """The time that `advance` has led to."""
        return self._now_s

    def wall_s(self) -> float:
        """The calendar time that `advance` has led to."""
        return self._wall_s

    def advance(self, duration_s: float) -> None:
        """Let `duration_s` seconds pass."""
        self._now_s += duration_s
        self._wall_s += duration_s


class RunningClock:
    """A clock that stands still while this process does.

    A sleeper who wakes must not reproach the others with their silence. The server reads this
    clock at every tick and every request; two readings further apart than `longest_gap_s` mean
    that it was stopped or starved, and that time is taken out: nobody could be heard in it.
    """

    def __init__(self, source: Clock, *, longest_gap_s: float) -> None:
        self._source = source
        self._longest_gap_s = longest_gap_s
        self._last_s = source.now_s()
        self._paused_s = 0.0

    def now_s(self) -> float:
        """Monotonic seconds, less all pauses of this process."""
        raw_s = self._source.now_s()
        gap_s = raw_s - self._last_s
        self._last_s = raw_s
        if gap_s > self._longest_gap_s:
            self._paused_s += gap_s
        return raw_s - self._paused_s

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC, pauses included."""
        return self._source.wall_s()

    @property
    def paused_s(self) -> float:
        """How long the pauses have been, all together."""
        return self._paused_s
