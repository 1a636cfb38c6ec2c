"""Virtual time, what goes wrong, and where: the stage on which simulated groups step.

Everything random comes from one seed.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Generator
from enum import Enum
from typing import Any, Protocol

Act = Callable[[], None]
FOREVER_S = 1e6


class Fault(Enum):
    """What the nemesis can do to a rank or its group."""

    KILL_GROUP = "kill group"
    KILL_RANK = "kill rank"
    FREEZE_GROUP = "freeze group"
    FREEZE_RANK = "freeze rank"
    FAIL = "fail on one rank"
    FAIL_GROUP = "fail on the whole group"
    DAMAGE = "damage a message"
    NON_FINITE = "not finite"
    LOSE = "lose a notice"
    END = "end an attempt for no reason"
    LEAVE_OUT = "leave out of a quorum"
    DELAY = "delay a message"


class Point(Enum):
    """Where in an attempt a rank is."""

    QUORUM = "quorum"
    CONFIGURE = "configure"
    HEAL = "heal"
    AGREE = "agree"
    ROUND = "round"
    REDUCE = "reduce"
    REDUCED = "between reduce and vote"
    VOTE = "vote"
    COMMITTED = "right after the commit"


class Died(Exception):  # noqa: N818, an end, not an error
    """Ends the life of the rank that is killed."""


class Process(Protocol):
    """What the world runs: `life` yields how long it waits at most."""

    life: Generator[float, None, Any]
    epoch: int
    dead: bool
    frozen_until_s: float


class World:
    """A queue of what will happen, and how likely it is that something goes wrong."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.rate = self.random.choice((0.02, 0.05, 0.1))
        # A few kinds of faults per life: alone, each gets further than among all others.
        self.faults = self.random.sample(list(Fault), self.random.randint(2, len(Fault)))
        self.struck: Counter[tuple[Fault, Point | None]] = Counter()
        self.stopped = False
        self._queue: list[tuple[float, int, Process | None, int, Act | None]] = []
        self._order = itertools.count()

    def make_peace(self) -> None:
        """From now on nothing goes wrong."""
        self.rate = 0.0
        self.faults = []

    def after(self, delay_s: float, act: Act) -> None:
        """Let this happen later."""
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._order), None, 0, act))

    def wake(self, process: Process) -> None:
        """End the waiting of a process, a moment from now."""
        self._resume_in(process, 0.05 * self.random.random())

    def run(self, until_s: float) -> None:
        """Let time pass, to `until_s` or until `stopped`."""
        queue = self._queue
        while queue and queue[0][0] <= until_s and not self.stopped:
            self.now_s, _, process, epoch, act = heapq.heappop(queue)
            if act is not None:
                act()
            elif process is not None and process.epoch == epoch:
                self._resume(process)

    def _resume_in(self, process: Process, delay_s: float) -> None:
        process.epoch += 1
        entry = (self.now_s + delay_s, next(self._order), process, process.epoch, None)
        heapq.heappush(self._queue, entry)

    def _resume(self, process: Process) -> None:
        if process.dead:
            return
        if self.now_s < process.frozen_until_s:
            self._resume_in(process, process.frozen_until_s - self.now_s)
            return
        try:
            wait_s = next(process.life)
        except Died:
            return
        self._resume_in(process, wait_s)

    def strikes(self, fault: Fault, probability: float, point: Point | None = None) -> bool:
        """Whether this goes wrong, with a probability of its own."""
        if fault in self.faults and self.random.random() < probability:
            self.struck[fault, point] += 1
            return True
        return False

    def delay_s(self) -> float:
        """How long a message takes: mostly next to nothing, now and then long enough to be overtaken."""
        late = self.strikes(Fault.DELAY, 0.1)
        return self.random.uniform(0.5, 5.0) if late else 0.05 * self.random.random()
