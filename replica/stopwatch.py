"""Times what a rank does: the phases of each attempt for the ledger, and the causes of all its time."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields

from replica.goodput import Doing, Fate, Meter
from replica.ledger import PhaseSeconds


class Stopwatch:
    """Runs for the whole life of a rank, which does one thing at a time.

    Any thread may say what that is, as long as the others wait for it: torchft connects and heals on a
    thread of its own while the training thread waits. `seconds_by_cause` may be called at any time.
    """

    def __init__(self, *, age_s: float = 0.0, clock: Callable[[], float] = time.perf_counter) -> None:
        """age_s: for how long the process has been starting."""
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s = clock()
        self._meter = Meter(self._began_s - age_s)
        self._phases: defaultdict[Doing, float] = defaultdict(float)

    @contextmanager
    def time(self, doing: Doing) -> Iterator[None]:
        """During the block this is done, after it again what was done before."""
        before = self.enter(doing)
        try:
            yield
        finally:
            self.enter(before)

    def enter(self, doing: Doing) -> Doing:
        """From now on this is done; returns what was done before."""
        with self._lock:
            before = self._meter.doing
            self._phases[before] += self._meter.enter(doing, self._clock())
            return before

    def begin_attempt(self) -> None:
        """The next attempt begins, by waiting for a quorum."""
        with self._lock:
            now_s = self._clock()
            before = self._meter.doing
            self._phases[before] += self._meter.enter(Doing.QUORUM, now_s)
            between = {doing: self._phases[doing] for doing in (Doing.SAVE, Doing.SCRIPT)}
            self._phases, self._began_s = defaultdict(float, between), now_s

    def end_attempt(self, fate: Fate) -> None:
        """The attempt is over. What the ledger says of it is taken before."""
        with self._lock:
            self._meter.end_attempt(fate, self._clock())
            self._phases.clear()

    def seconds(self) -> PhaseSeconds:
        """What the attempt under way has spent so far."""
        with self._lock:
            now_s = self._clock()
            self._phases[self._meter.doing] += self._meter.enter(self._meter.doing, now_s)
            named = {
                each.name: self._phases[Doing(each.name)]
                for each in fields(PhaseSeconds)
                if each.name != "total"
            }
            return PhaseSeconds(**named, total=now_s - self._began_s)

    def seconds_by_cause(self) -> dict[str, float]:
        """Seconds of this life by cause, each by its name; none ever falls. Any thread."""
        with self._lock:
            return {str(cause): value for cause, value in self._meter.seconds_by_cause(self._clock()).items()}
