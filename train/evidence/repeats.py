"""Steps that were committed again, and whether that took anything back; pure."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from replica.ledger import LedgerLine, Outcome
from train.evidence.eras import Eras, find_eras
from train.evidence.files import Evidence
from train.evidence.gaps import find_gaps
from train.evidence.history import Life, commits, commits_by_step, life, quorum, remembered


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A step that was committed again under a later quorum.

    `takers` are the lives that had taken the step before and were there to see it again. `deeper`
    tells that a later step had been committed by then. With neither, only groups that died had the
    step and it was their newest: computing it again takes nothing back. `restored` tells that all
    groups had died in between, and that a save of before this step was read: how deep is no matter then. It
    is also taken to be so where ledgers or events are missing that might tell of it.
    """

    step: int
    quorum_id: int
    takers: tuple[Life, ...]
    deeper: bool
    restored: bool

    @property
    def excused(self) -> bool:
        """Whether the step was computed again without anybody living losing it."""
        return not self.takers and (self.restored or not self.deeper)


@remembered
def find_repeats(evidence: Evidence) -> list[Repeat]:
    """Every time that a step was committed again under a later quorum id, steps rising."""
    again = [
        (step, before, quorum_id)
        for step, lines in commits_by_step(evidence).items()
        for before, quorum_id in pairwise(sorted({quorum(line) for line in lines}))
    ]
    if not again:
        return []
    past = _Past(evidence, find_eras(evidence))
    return [past.judge(*one) for one in again]


class _Highest:
    """The highest of some numbers, counting those that belong to quorums before a given one."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        """pairs: (quorum id, number)."""
        ordered = sorted(pairs)
        self.quorums = [quorum_id for quorum_id, _ in ordered]
        self._highest = list(accumulate((number for _, number in ordered), max))

    def before(self, quorum_id: int) -> int:
        """-1 where there is none."""
        index = bisect_left(self.quorums, quorum_id)
        return self._highest[index - 1] if index > 0 else -1


class _Past:
    """How far whom had come before a quorum, as ledgers tell."""

    def __init__(self, evidence: Evidence, eras: Eras) -> None:
        self._eras = eras
        self._untold = bool(find_gaps(evidence).all)
        had: dict[Life, list[tuple[int, int]]] = defaultdict(list)
        for line in evidence.lines:
            had[life(line)].append((quorum(line), _had(line)))
        self._had = {one: _Highest(pairs) for one, pairs in had.items()}
        steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for line in commits(evidence.lines):
            steps[eras.of(line).number].append((quorum(line), line.step))
        self._by_era = {number: _Highest(pairs) for number, pairs in steps.items()}
        self._in_all = _Highest(pair for pairs in steps.values() for pair in pairs)

    def judge(self, step: int, before: int, quorum_id: int) -> Repeat:
        """What it means that a step of the quorum `before` was committed again."""
        era = self._eras.at(quorum_id)
        new_era = era is not self._eras.at(before)
        deepest = self._in_all if new_era else self._by_era[era.number]
        takers = (
            one
            for one, had in self._had.items()
            if had.quorums[0] < quorum_id <= had.quorums[-1] and had.before(quorum_id) > 2 * step
        )
        return Repeat(
            step=step,
            quorum_id=quorum_id,
            takers=tuple(sorted(takers)),
            deeper=deepest.before(quorum_id) > step,
            restored=(new_era and step >= era.step) or self._untold,
        )


def _had(line: LedgerLine) -> int:
    """Above 2 * step where the line shows that the group has that step."""
    return 2 * line.step + (line.outcome is Outcome.COMMITTED)
