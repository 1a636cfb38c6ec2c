"""What a run's evidence amounts to: commits, rounds, lives of groups; pure, and no judgement."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TypeVar

from replica.ledger import EventKind, KillTarget, LedgerLine, Outcome
from train.evidence.files import Event, Evidence, RoundDone

Attempt = tuple[int, int]  # step, quorum id
Life = tuple[int, str]  # group, incarnation
Place = tuple[int, int, int]  # rounds in a step, step, round

# An absent quorum id sorts below every true one.
NO_QUORUM = -1

Derived = TypeVar("Derived")


def remembered(derive: Callable[[Evidence], Derived]) -> Callable[[Evidence], Derived]:
    """What is derived from evidence is derived once; nobody may change it."""

    @wraps(derive)
    def once(evidence: Evidence) -> Derived:
        if derive not in evidence.derived:
            evidence.derived[derive] = derive(evidence)
        found: Derived = evidence.derived[derive]
        return found

    return once


def commits(lines: Iterable[LedgerLine]) -> list[LedgerLine]:
    """The committed lines, in the order given."""
    return [line for line in lines if line.outcome is Outcome.COMMITTED]


@remembered
def commits_by_step(evidence: Evidence) -> Mapping[int, list[LedgerLine]]:
    """The committed lines of each step, steps rising, lines by quorum id and group."""
    found: dict[int, list[LedgerLine]] = defaultdict(list)
    for line in sorted(commits(evidence.lines), key=lambda line: (line.step, quorum(line), line.group)):
        found[line.step].append(line)
    return dict(found)


@remembered
def commits_by_attempt(evidence: Evidence) -> Mapping[Attempt, list[LedgerLine]]:
    """The committed lines of each attempt, by step and quorum id."""
    found: dict[Attempt, list[LedgerLine]] = defaultdict(list)
    for step, lines in commits_by_step(evidence).items():
        for line in lines:
            found[step, quorum(line)].append(line)
    return dict(found)


@remembered
def commits_by_life(evidence: Evidence) -> Mapping[Life, list[LedgerLine]]:
    """The committed lines of each life, in order."""
    found: dict[Life, list[LedgerLine]] = defaultdict(list)
    for line in commits(evidence.lines):
        found[life(line)].append(line)
    return dict(found)


def quorum(line: LedgerLine) -> int:
    """The quorum id of a line, NO_QUORUM where it had none."""
    return NO_QUORUM if line.quorum_id is None else line.quorum_id


def life(line: LedgerLine | RoundDone) -> Life:
    """Which life of which group wrote this."""
    return line.group, line.incarnation


def life_of(event: Event) -> Life:
    """Which life of which group an event is about, as far as it tells."""
    return event.group if event.group is not None else -1, event.incarnation or ""


@remembered
def lives(evidence: Evidence) -> list[tuple[int, Life]]:
    """The first sign of each life, as (index of the event, life); lives without an event come last."""
    first: dict[Life, int] = {}
    for index, event in enumerate(evidence.events):
        if event.group is not None and event.incarnation is not None:
            first.setdefault((event.group, event.incarnation), index)
    for line in evidence.lines:
        first.setdefault(life(line), len(evidence.events))
    return sorted((index, one) for one, index in first.items())


@remembered
def life_starts(evidence: Evidence) -> Mapping[Life, float]:
    """When each life showed its first sign in the events, in seconds since the epoch."""
    known = [
        (evidence.events[index].t, one) for index, one in lives(evidence) if index < len(evidence.events)
    ]
    return {one: t for t, one in known}


@remembered
def lives_by_quorum(evidence: Evidence) -> Mapping[int, set[Life]]:
    """The lives that left a sign of each quorum: a line, a quorum event or a finished round of theirs."""
    found: dict[int, set[Life]] = defaultdict(set)
    for line in evidence.lines:
        found[quorum(line)].add(life(line))
    for done in evidence.rounds_done:
        found[done.quorum_id].add(life(done))
    for event in evidence.of(EventKind.QUORUM):
        if event.group is not None and event.incarnation is not None:
            found[event.integer("quorum_id") or 0].add((event.group, event.incarnation))
    return dict(found)


@remembered
def quorum_spans(evidence: Evidence) -> Mapping[Life, tuple[int, int]]:
    """The first and the last quorum of each life that left a sign of one."""
    found: dict[Life, tuple[int, int]] = {}
    for quorum_id, present in lives_by_quorum(evidence).items():
        for one in present if quorum_id != NO_QUORUM else ():
            first, last = found.get(one, (quorum_id, quorum_id))
            found[one] = min(first, quorum_id), max(last, quorum_id)
    return found


@remembered
def rounds_by_attempt(evidence: Evidence) -> Mapping[Attempt, list[RoundDone]]:
    """The finished rounds of each attempt, by step and quorum id."""
    found: dict[Attempt, list[RoundDone]] = defaultdict(list)
    for done in evidence.rounds_done:
        found[done.step, done.quorum_id].append(done)
    return dict(found)


def is_exact(evidence: Evidence) -> bool:
    """Whether the run promised bits that do not depend on who was alive."""
    if evidence.job is not None:
        return evidence.job.mode == "exact"
    started = evidence.of(EventKind.GROUP_STARTED)
    return bool(started) and all(event.values.get("mode") == "exact" for event in started)


def is_death(event: Event) -> bool:
    """Whether the event says that a life of its group ended, or was made to end."""
    if event.kind is EventKind.KILL:
        return bool(event.values["target"] != KillTarget.LIGHTHOUSE)
    return event.kind in (EventKind.GROUP_EVICTED, EventKind.GROUP_EXITED, EventKind.FINISHED)


def group_numbers(value: object) -> list[int]:
    """The groups that a field of an event names: one number, or a list of them."""
    named = value if isinstance(value, list | tuple) else [value]
    return [group for group in named if isinstance(group, int)]
