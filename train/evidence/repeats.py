"""Steps that were committed again, and whether that took anything back; pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from replica.ledger import LedgerLine, Outcome
from train.evidence.eras import Eras
from train.evidence.files import Evidence
from train.evidence.history import Life, commits, commits_by_step, life, quorum


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A step that was committed again under a later quorum.

    `takers` are the lives that had taken the step before and were there to see it again. `deeper`
    tells that a later step had been committed by then. With neither, only groups that died had the
    step and it was their newest: computing it again takes nothing back. `restored` tells that all
    groups had died in between, and that a save of before this step was read: how deep is no matter then.
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


def find_repeats(evidence: Evidence, eras: Eras) -> list[Repeat]:
    """Every time that a step was committed again under a later quorum id, steps rising."""
    again = [
        (step, before, quorum_id)
        for step, lines in commits_by_step(evidence).items()
        for before, quorum_id in pairwise(sorted({quorum(line) for line in lines}))
    ]
    spans = _quorum_spans(evidence)
    return [_repeat(evidence, eras, spans, *one) for one in again]


def _quorum_spans(evidence: Evidence) -> Mapping[Life, tuple[int, int]]:
    """The first and the last quorum in the ledger of each life."""
    quorums: dict[Life, list[int]] = defaultdict(list)
    for line in evidence.lines:
        quorums[life(line)].append(quorum(line))
    return {one: (min(numbers), max(numbers)) for one, numbers in quorums.items()}


def _repeat(
    evidence: Evidence,
    eras: Eras,
    spans: Mapping[Life, tuple[int, int]],
    step: int,
    before: int,
    quorum_id: int,
) -> Repeat:
    witnesses = {one for one, (first, last) in spans.items() if first < quorum_id <= last}
    era = eras.at(quorum_id)
    new_era = era is not eras.at(before)
    restored = new_era and step >= era.step
    told = bool(witnesses) or not restored
    earlier = [line for line in evidence.lines if quorum(line) < quorum_id] if told else []
    return Repeat(
        step=step,
        quorum_id=quorum_id,
        takers=tuple(sorted({life(line) for line in earlier if _had(line, step)} & witnesses)),
        deeper=any(line.step > step for line in commits(earlier) if new_era or eras.of(line) is era),
        restored=restored,
    )


def _had(line: LedgerLine, step: int) -> bool:
    return line.step > step or (line.outcome is Outcome.COMMITTED and line.step == step)
