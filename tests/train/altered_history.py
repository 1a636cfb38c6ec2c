"""Evidence with one thing changed, for tests of those who judge it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from replica.ledger import LedgerLine
from train.evidence.files import Event, Evidence


def with_line(evidence: Evidence, old: LedgerLine, *new: LedgerLine) -> Evidence:
    lines = [(new if line is old else (line,)) for line in evidence.ledgers[old.group]]
    return replace(
        evidence, ledgers={**evidence.ledgers, old.group: tuple(x for some in lines for x in some)}
    )


def with_lines(evidence: Evidence, change: Callable[[LedgerLine], LedgerLine | None]) -> Evidence:
    ledgers = {
        group: tuple(changed for line in lines if (changed := change(line)) is not None)
        for group, lines in evidence.ledgers.items()
    }
    return replace(evidence, ledgers=ledgers)


def with_event(evidence: Evidence, old: Event, *new: Event) -> Evidence:
    return replace(evidence, events=tuple(x for e in evidence.events for x in (new if e is old else (e,))))


def without(evidence: Evidence, unwanted: Callable[[Event], bool]) -> Evidence:
    return replace(evidence, events=tuple(event for event in evidence.events if not unwanted(event)))


def altered(event: Event, **values: Any) -> Event:
    return replace(event, values={**event.values, **values})
