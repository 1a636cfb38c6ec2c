"""When to kill which group: a pure schedule, a function of the seed and of what is seen."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from replica.errors import UserError
from train.cluster.snapshot import Snapshot

# In the last steps a killed group could not come back before the end, so nothing would be learnt.
QUIET_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class KillAt:
    """A kill of one group, wanted when the job has committed `step` steps."""

    step: int
    group: int


@dataclass(frozen=True, kw_only=True)
class PlannedKill:
    """A kill of the storm: gap_s after the one before, and phase_s after it became allowed."""

    group: int
    gap_s: float
    phase_s: float


def parse_kill_at(text: str, *, groups: int, steps: int) -> KillAt:
    """Reads STEP:GROUP. Raises UserError if it is malformed or names no step or group of the job."""
    step_text, colon, group_text = text.partition(":")
    if not (colon and step_text.isdecimal() and group_text.isdecimal()):
        raise UserError(f"--kill-at {text}: expected STEP:GROUP, two whole numbers such as 20:1.")
    kill = KillAt(step=int(step_text), group=int(group_text))
    if kill.group >= groups:
        raise UserError(f"--kill-at {text}: there is no group {kill.group}, groups are 0 to {groups - 1}.")
    if not 0 < kill.step < steps:
        raise UserError(f"--kill-at {text}: the step must lie between 1 and {steps - 1} in a job of {steps}.")
    return kill


def planned_kills(*, seed: int, groups: int, every_s: float) -> Iterator[PlannedKill]:
    """The endless storm of a seed: in each round of it every group once, in shuffled order.

    Gaps are spread evenly from half of every_s to one and a half of it; phase_s lies within a second.
    """
    source = random.Random(f"kills {seed}")
    while True:
        turn = list(range(groups))
        source.shuffle(turn)
        for group in turn:
            gap_s = every_s * source.uniform(0.5, 1.5)
            yield PlannedKill(group=group, gap_s=gap_s, phase_s=source.random())


def may_kill(group: int, seen: Snapshot) -> bool:
    """Whether the group may be killed now.

    It must be training again itself, and another group must be up to date: the state lives in the
    groups, so the last one that has it is never killed.
    """
    others = seen.up_to_date() - {group}
    training = {each.group for each in seen.groups if each.state == "training"}
    return group in training and bool(others)


@dataclass(kw_only=True)
class Chaos:
    """Decides kills from what it is shown. Owns no clock, no thread and no process.

    every_s 0 means no storm; kills named by step come in any case. One caller at a time.
    """

    seed: int
    groups: int
    every_s: float = 0.0
    at: tuple[KillAt, ...] = ()
    _waiting: list[KillAt] = field(init=False)
    _storm: Iterator[PlannedKill] = field(init=False)
    _next: PlannedKill = field(init=False)
    _due_s: float | None = field(init=False, default=None)
    _allowed_since_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._waiting = sorted(self.at, key=lambda kill: (kill.step, kill.group))
        self._storm = planned_kills(seed=self.seed, groups=self.groups, every_s=self.every_s)
        self._next = next(self._storm)

    def victim(self, now_s: float, seen: Snapshot) -> int | None:
        """The group to kill now, or None. Ask again after each kill, with a new snapshot."""
        named = self._named_victim(seen)
        if named is not None or self.every_s <= 0:
            return named
        return self._storm_victim(now_s, seen)

    def _named_victim(self, seen: Snapshot) -> int | None:
        for kill in self._waiting:
            if kill.step <= seen.step and may_kill(kill.group, seen):
                self._waiting.remove(kill)
                return kill.group
        return None

    def _storm_victim(self, now_s: float, seen: Snapshot) -> int | None:
        if self._due_s is None:
            if len(seen.up_to_date()) < self.groups:
                return None  # the first gap counts from the moment when all groups train
            self._due_s = now_s + self._next.gap_s
        if not may_kill(self._next.group, seen) or _is_quiet(seen):
            self._allowed_since_s = None
            return None
        if self._allowed_since_s is None:
            self._allowed_since_s = now_s
        # A kill that had to wait for its victim would else always hit it in the same phase.
        if now_s < max(self._due_s, self._allowed_since_s + self._next.phase_s):
            return None
        return self._take_turn(now_s)

    def _take_turn(self, now_s: float) -> int:
        victim = self._next.group
        self._next = next(self._storm)
        self._due_s = now_s + self._next.gap_s
        self._allowed_since_s = None
        return victim


def _is_quiet(seen: Snapshot) -> bool:
    return seen.steps is not None and seen.step >= seen.steps - QUIET_STEPS
