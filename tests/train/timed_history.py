"""A simulated history in which time passes as in a real run: starts take long, and lines tell it all."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from altered_history import altered, with_lines

from replica.ledger import EventKind, LedgerLine, PhaseSeconds
from train.evidence.files import Event, Evidence

PHASES = ("quorum", "configure", "heal", "compute", "reduce", "vote", "commit")
# What only who runs the groups writes down.
OUTSIDE = (EventKind.JOB_STARTED, EventKind.KILL, EventKind.GROUP_LAUNCHED, EventKind.GROUP_EXITED)
SHORTEST_S = 0.006


def timed(evidence: Evidence, seed: int, *, outside: bool = False, pauses: bool = False) -> Evidence:
    """The run with earlier launches, and lines that tell all phases and what lay between attempts.

    outside: nobody ran the groups who would have told of launches and ends. pauses: victims are frozen
    instead of killed, and a group is once that wakes up again.
    """
    events = list(_launched_early(evidence))
    if pauses:
        events = [_frozen(event) if event.kind is EventKind.KILL else event for event in events]
        awake_t = evidence.ledgers[0][0].t
        for t, kind in ((awake_t - 0.02, EventKind.GROUP_PAUSED), (awake_t - 0.01, EventKind.GROUP_RESUMED)):
            events.append(Event(t=t, kind=kind, values={"group": 0}))
    if outside:
        events = [event for event in events if event.kind not in OUTSIDE]
    return _told_in_full(replace(evidence, events=tuple(events)), Random(seed))


def _launched_early(evidence: Evidence) -> Iterator[Event]:
    """Each launch halfway between the end before and the start that came of it."""
    begin_t = evidence.events[0].t - 3.0
    gone_t: dict[int | None, float] = {}
    launched_t: dict[int | None, float] = {}
    starts = iter([event for event in evidence.events if event.kind is EventKind.GROUP_STARTED])
    for event in evidence.events:
        if event.kind is EventKind.JOB_STARTED and not gone_t:
            yield replace(event, t=begin_t)
            gone_t[None] = begin_t
            continue
        if event.kind is EventKind.GROUP_LAUNCHED:
            since = max(gone_t.get(event.group, begin_t), gone_t[None])
            launched_t[event.group] = since + 0.5 * (next(starts).t - since)
            yield replace(event, t=launched_t[event.group])
        elif event.kind is EventKind.GROUP_STARTED:
            yield altered(event, age_s=event.t - launched_t[event.group])
        else:
            yield event
        gone_t[None if event.kind is EventKind.JOB_STARTED else event.group] = event.t


def _frozen(kill: Event) -> Event:
    return Event(t=kill.t, kind=EventKind.GROUP_PAUSED, values={"group": kill.group})


def _told_in_full(evidence: Evidence, random: Random) -> Evidence:
    ready_t = {
        (event.group, event.incarnation): event.t
        for event in evidence.events
        if event.kind in (EventKind.GROUP_STARTED, EventKind.BACKSTOP_READ)
    }

    def change(line: LedgerLine) -> LedgerLine:
        one = line.group, line.incarnation
        since = line.t - ready_t[one]
        between: dict[str, Any] = {
            "save": random.choice([0.0, 0.1 * since]), "script": random.choice([0.0, 0.1 * since]),
        }  # fmt: skip
        total = since - sum(between.values()) - random.choice([0.0, 0.05 * since])
        told = total - random.choice([0.0, 0.05 * total])
        parts = [random.random() ** 2 for _ in PHASES]
        spare = told - len(PHASES) * SHORTEST_S
        phases = {
            name: SHORTEST_S + spare * part / sum(parts) for name, part in zip(PHASES, parts, strict=True)
        }
        ready_t[one] = line.t
        return replace(line, seconds=PhaseSeconds(**phases, **between, total=total))

    return with_lines(evidence, change)
