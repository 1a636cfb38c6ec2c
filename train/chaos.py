"""When to kill what: a pure schedule, a function of the seed and of what is seen."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from replica.errors import UserError
from replica.ledger import KillTarget
from train.cluster.snapshot import GroupState, Snapshot

# In the last steps a killed group could not come back before the end, so nothing would be learnt.
QUIET_STEPS = 5
LIGHTHOUSE_DOWN_S = (0.2, 2.0)

_Choice = TypeVar("_Choice")


@dataclass(frozen=True, kw_only=True)
class KillAt:
    """A kill of one group, wanted when the job has committed `step` steps."""

    step: int
    group: int


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What to kill with SIGKILL.

    group: None for the Lighthouse. rank: for target RANK, else None. down_s: seconds after which the
    Lighthouse is started again; groups come back as the cluster says.
    """

    target: KillTarget
    group: int | None = None
    rank: int | None = None
    down_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedKill:
    """A kill of the storm: gap_s after the one before, and phase_s after it became allowed."""

    kill: Kill
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


def parse_kill_targets(text: str) -> tuple[KillTarget, ...]:
    """Reads a comma list of kinds. Raises UserError for an unknown one, a double one, or none."""
    words = [word.strip() for word in text.split(",")]
    known = ", ".join(KillTarget)
    for word in words:
        if word not in list(KillTarget):
            raise UserError(f"--kill-targets {text}: there is no target {word!r}, use {known}.")
    if len(set(words)) < len(words):
        raise UserError(f"--kill-targets {text}: name each target once.")
    return tuple(KillTarget(word) for word in words)


def planned_kills(
    *, seed: int, groups: int, ranks: int, every_s: float, targets: Sequence[KillTarget], rank: int | None
) -> Iterator[PlannedKill]:
    """The endless storm of a seed: each target and each group has its turn, in shuffled order.

    Gaps are spread evenly from half of every_s to one and a half of it; phase_s lies within a second.
    rank: the one that kills of a rank hit; None: any of the group's.
    """
    source = random.Random(f"kills {seed}")
    turns = _turns(source, sorted(set(targets)))
    group_turns = _turns(source, range(groups))
    while True:
        target = next(turns)
        if target is KillTarget.LIGHTHOUSE:
            kill = Kill(target=target, down_s=source.uniform(*LIGHTHOUSE_DOWN_S))
        else:
            drawn = source.randrange(ranks) if rank is None else rank
            hit = drawn if target is KillTarget.RANK else None
            kill = Kill(target=target, group=next(group_turns), rank=hit)
        gap_s = every_s * source.uniform(0.5, 1.5)
        yield PlannedKill(kill=kill, gap_s=gap_s, phase_s=source.random())


def _turns(source: random.Random, choices: Sequence[_Choice]) -> Iterator[_Choice]:
    """Each choice once, in shuffled order, again and again."""
    while True:
        turn = list(choices)
        source.shuffle(turn)
        yield from turn


def may_kill(kill: Kill, seen: Snapshot) -> bool:
    """Whether the kill may happen now.

    A group must be training again itself, and another one must be up to date: the state lives in
    the groups, so the last one that has it is never killed. The Lighthouse must be up, and some
    group must train, so that there is something to disturb.
    """
    if kill.group is None:
        return seen.lighthouse_up and bool(seen.up_to_date())
    training = {each.group for each in seen.groups if each.state is GroupState.TRAINING}
    return kill.group in training and bool(seen.up_to_date() - {kill.group})


@dataclass(kw_only=True)
class Chaos:
    """Decides kills from what it is shown. Owns no clock, no thread and no process.

    every_s 0 means no storm; kills named by step come in any case. targets: what the storm hits.
    rank: if given, every kill hits this rank of a group only. One caller at a time.
    """

    seed: int
    groups: int
    ranks: int = 1
    every_s: float = 0.0
    targets: tuple[KillTarget, ...] = (KillTarget.GROUP,)
    rank: int | None = None
    at: tuple[KillAt, ...] = ()
    _waiting: list[KillAt] = field(init=False)
    _storm: Iterator[PlannedKill] = field(init=False)
    _next: PlannedKill = field(init=False)
    _due_s: float | None = field(init=False, default=None)
    _allowed_since_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._waiting = sorted(self.at, key=lambda kill: (kill.step, kill.group))
        self._storm = planned_kills(
            seed=self.seed,
            groups=self.groups,
            ranks=self.ranks,
            every_s=self.every_s,
            targets=self.targets if self.rank is None else (KillTarget.RANK,),
            rank=self.rank,
        )
        self._next = next(self._storm)

    def due(self, now_s: float, seen: Snapshot) -> Kill | None:
        """What to kill now, or None. Ask again after each kill, with a new snapshot.

        now_s: a monotonic clock.
        """
        named = self._due_by_step(seen)
        if named is not None or self.every_s <= 0:
            return named
        return self._due_of_storm(now_s, seen)

    def _due_by_step(self, seen: Snapshot) -> Kill | None:
        target = KillTarget.GROUP if self.rank is None else KillTarget.RANK
        for named in self._waiting:
            kill = Kill(target=target, group=named.group, rank=self.rank)
            if named.step <= seen.step and may_kill(kill, seen):
                self._waiting.remove(named)
                return kill
        return None

    def _due_of_storm(self, now_s: float, seen: Snapshot) -> Kill | None:
        if self._due_s is None:
            if len(seen.up_to_date()) < self.groups:
                return None  # the first gap counts from the moment when all groups train
            self._due_s = now_s + self._next.gap_s
        if not may_kill(self._next.kill, seen) or _is_quiet(seen):
            self._allowed_since_s = None
            return None
        if self._allowed_since_s is None:
            self._allowed_since_s = now_s
        # A kill that had to wait for its victim would else always hit it in the same phase.
        if now_s < max(self._due_s, self._allowed_since_s + self._next.phase_s):
            return None
        return self._take_turn(now_s)

    def _take_turn(self, now_s: float) -> Kill:
        kill = self._next.kill
        self._next = next(self._storm)
        self._due_s = now_s + self._next.gap_s
        self._allowed_since_s = None
        return kill


def _is_quiet(seen: Snapshot) -> bool:
    return seen.steps is not None and seen.step >= seen.steps - QUIET_STEPS
