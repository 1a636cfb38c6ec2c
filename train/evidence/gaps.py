"""What a run's evidence lacks, and what cannot be judged for that; pure."""

from collections.abc import Collection
from dataclasses import dataclass

from replica.ledger import EventKind
from train.evidence.files import Evidence
from train.evidence.history import group_numbers, remembered

HINT = "where each host has a folder of its own, --merge puts them together"


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Groups that trained and whose ledger, or whose own events, are not there."""

    ledgers: frozenset[int]
    events: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        """The groups of whose rounds no more is known than what others tell."""
        return self.ledgers | self.events


@remembered
def find_gaps(evidence: Evidence) -> Gaps:
    """A group has trained if a quorum names it, or its ledger has a line."""
    named = {group for line in evidence.lines for group in line.participants}
    for event in evidence.of(EventKind.QUORUM):
        named.update(group_numbers(event.values["participants"]))
    wrote = {group for group, lines in evidence.ledgers.items() if lines}
    told = {event.group for event in evidence.events if event.incarnation is not None}
    return Gaps(ledgers=frozenset(named - evidence.ledgers.keys()), events=frozenset(wrote - told))


def not_judged(evidence: Evidence) -> list[str]:
    """A sentence for each kind of thing that is missing."""
    gaps = find_gaps(evidence)
    said = []
    if not evidence.events:
        said.append("events.jsonl is missing: what happened to samples cannot be judged")
    elif gaps.events:
        said.append(
            f"there are no events of {_names(gaps.events)}: samples fed there cannot be judged; {HINT}"
        )
    if gaps.ledgers:
        said.append(
            f"there is no ledger of {_names(gaps.ledgers)}: rounds run there cannot be judged; {HINT}"
        )
    return said


def _names(groups: Collection[int]) -> str:
    return "group " + " and ".join(map(str, sorted(groups)))
