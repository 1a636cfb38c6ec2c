"""The eras of a job, each begun by a disaster in which all groups died and a save was read; pure.

No life spans the border of two eras. Steps above the save that were committed before the border are
computed again, and what counts in the end is one trajectory that winds through the eras.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from replica.backstop.names import SaveName
from replica.ledger import EventKind, LedgerLine
from train.evidence.files import Event, Evidence
from train.evidence.history import (
    NO_QUORUM,
    Life,
    commits,
    is_exact,
    life_of,
    quorum,
    quorum_spans,
    remembered,
)

# Parts of a past: (the step from which on, a number that is equal where steps were computed alike).
Lineage = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Era:
    """The job from one disaster restore, or from its start, to the next.

    first_quorum: its lowest quorum id. step: steps in the state that it began with. reads: of that
    state from a save, one for each group. parent: number of the era in which the save was made, None
    for the start of the job. rounds: in each step. ranks: in each group, 0 where nobody told.
    """

    number: int
    first_quorum: int
    step: int
    reads: tuple[Event, ...]
    parent: int | None
    rounds: int
    ranks: int
    lineage: Lineage

    def past_of(self, step: int) -> Lineage:
        """What the bits of a step of this era follow from: two eras with the same have the same bits."""
        return tuple(part for part in self.lineage if part[0] <= step)


@dataclass(frozen=True)
class Eras:
    """All eras of a job, in order; there is one at least."""

    all: tuple[Era, ...]

    @property
    def disasters(self) -> tuple[Era, ...]:
        """The eras that a save began."""
        return tuple(era for era in self.all if era.reads)

    def at(self, quorum_id: int) -> Era:
        """The era of a quorum."""
        return self.all[max(0, bisect_right(self._borders, quorum_id) - 1)]

    def of(self, line: LedgerLine) -> Era:
        """The era of an attempt."""
        return self.at(quorum(line))

    def counts(self, line: LedgerLine) -> bool:
        """Whether a step, if the line committed it, is part of the state that the job ended with."""
        above, below = self._spans.get(self.of(line).number, (0, 0))
        return above <= line.step < below

    @cached_property
    def _borders(self) -> list[int]:
        return [era.first_quorum for era in self.all]

    @cached_property
    def _spans(self) -> Mapping[int, tuple[int, float]]:
        """By era: from which step on, and below which, it is part of the final trajectory."""
        found: dict[int, tuple[int, float]] = {}
        era, below = self.all[-1], float("inf")
        while True:
            found[era.number] = era.step, below
            if era.parent is None:
                return found
            era, below = self.all[era.parent], min(below, era.step)


@remembered
def find_eras(evidence: Evidence) -> Eras:
    """The eras of a run.

    One begins where a life that read a save meets its first quorum, and no life from before is in
    that quorum or a later one.
    """
    spans = quorum_spans(evidence)
    reads = _reads_by_first_quorum(evidence, spans)
    borders = [q for q in sorted(reads) if not any(first < q <= last for first, last in spans.values())]
    begun_before = not borders or any(first < borders[0] for first, _ in spans.values())
    starts = [NO_QUORUM, *borders] if begun_before else borders
    eras: list[Era] = []
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        members = {one for one, (first, _) in spans.items() if _within(first, start, end)}
        own = [event for first, some in sorted(reads.items()) if _within(first, start, end) for event in some]
        eras.append(_era(evidence, eras, start, members, own if start in borders else []))
    return Eras(tuple(eras))


def _era(
    evidence: Evidence, before: list[Era], start: int, members: Collection[Life], reads: Sequence[Event]
) -> Era:
    """The era that begins with quorum `start`, after those before; members: the lives that begin in it."""
    step = max((event.integer("step") or 0 for event in reads), default=0)
    parent = _parent(evidence, before, reads, step, start) if before else None
    rounds, ranks = _shape(evidence, members)
    # In fast mode the bits of every restore are its own.
    way = rounds if is_exact(evidence) else len(before)
    return Era(
        number=len(before),
        first_quorum=start,
        step=step,
        reads=tuple(reads),
        parent=parent,
        rounds=rounds,
        ranks=ranks,
        lineage=_lineage(() if parent is None else before[parent].lineage, step, way),
    )


def _within(quorum_id: int, start: int, end: int | None) -> bool:
    return quorum_id >= start and (end is None or quorum_id < end)


def _reads_by_first_quorum(
    evidence: Evidence, spans: Mapping[Life, tuple[int, int]]
) -> Mapping[int, list[Event]]:
    """The reads of saves, by the first quorum that their life met afterwards."""
    found: dict[int, list[Event]] = defaultdict(list)
    for event in evidence.of(EventKind.BACKSTOP_READ):
        if (one := life_of(event)) in spans:
            found[spans[one][0]].append(event)
    return found


def _shape(evidence: Evidence, lives: Collection[Life]) -> tuple[int, int]:
    """Rounds of a step and ranks of a group, as some of these lives told, else as the job did."""
    told = [event for event in evidence.of(EventKind.GROUP_STARTED) if life_of(event) in lives]
    told += evidence.of(EventKind.JOB_STARTED)
    numbers = (number for line in commits(evidence.lines) for number, _ in line.rounds)
    rounds = next((event.integer("rounds") for event in told if event.integer("rounds") is not None), None)
    ranks = next((event.integer("ranks") for event in told if event.integer("ranks") is not None), None)
    return max(numbers, default=-1) + 1 if rounds is None else rounds, ranks or 0


def _parent(evidence: Evidence, before: list[Era], reads: Sequence[Event], step: int, start: int) -> int:
    """The era that made the save: as its name tells, else the last one that came to this step."""
    eras = Eras(tuple(before))
    for name in (SaveName.parse(str(event.values["save"])) for event in reads):
        if name is not None:
            return eras.at(name.quorum_id).number
    earlier = (line for line in commits(evidence.lines) if quorum(line) < start)
    came_to_it = {eras.of(line).number for line in earlier if line.step == step - 1}
    began_at_it = {era.number for era in before if era.step == step}
    return max(came_to_it | began_at_it, default=len(before) - 1)


def _lineage(before: Lineage, step: int, way: int) -> Lineage:
    kept = tuple(part for part in before if part[0] < step)
    return kept if kept and kept[-1][1] == way else (*kept, (step, way))
