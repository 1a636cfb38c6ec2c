"""The figures of a report, each from a run's evidence: pure."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from math import ceil
from statistics import fmean, median

from replica.ledger import EventKind, LedgerLine, Outcome
from train.evidence.eras import Eras
from train.evidence.files import Event, Evidence
from train.evidence.history import (
    NO_QUORUM,
    commits,
    commits_by_attempt,
    commits_by_step,
    group_numbers,
    is_death,
    is_exact,
    life,
    life_starts,
    quorum,
    rounds_by_attempt,
)
from train.evidence.repeats import Repeat
from train.evidence.violations import Violation, ViolationKind

LOST = (ViolationKind.SAMPLE_LOST, ViolationKind.INPUT_CHANGED)
REPEATED = (ViolationKind.SAMPLE_REPEATED, ViolationKind.INPUT_REPEATED)


def count(violations: Iterable[Violation], *kinds: ViolationKind) -> int:
    """How many of the violations are of these kinds."""
    return sum(violation.kind in kinds for violation in violations)


def quantiles(values: Iterable[float | None], *names: str) -> dict[str, float | None]:
    """`p50`, `p99` (nearest rank) and `max` of the known values, as named; None where there is none."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return dict.fromkeys(names)
    known = {"p50": median(ordered), "p99": ordered[ceil(0.99 * len(ordered)) - 1], "max": ordered[-1]}
    return {name: round(known[name], 4) for name in names}


def wall_s(evidence: Evidence) -> float:
    """Seconds from the first thing written down to the last."""
    times = [event.t for event in evidence.events] + [line.t for line in evidence.lines]
    return max(times) - min(times) if times else 0.0


def steps_discarded(evidence: Evidence) -> int:
    """Attempts whose finished rounds were thrown away, and that no group committed."""
    committed = commits_by_attempt(evidence)
    discarded = {
        (line.step, quorum(line))
        for line in evidence.lines
        if line.outcome is Outcome.DISCARDED and line.quorum_id is not None and line.rounds
    }
    return sum(attempt not in committed for attempt in discarded)


def steps_replayed(evidence: Evidence, repeats: Iterable[Repeat]) -> int:
    """Commits of a step that the group itself in one life, or a group alive, had committed before."""
    again = sum(not repeat.excused for repeat in repeats)
    for lines in evidence.ledgers.values():
        seen: set[tuple[str, int, int]] = set()
        for line in commits(lines):
            again += (line.incarnation, line.step, quorum(line)) in seen
            seen.add((line.incarnation, line.step, quorum(line)))
    return again


def steps_recommitted(evidence: Evidence, repeats: Iterable[Repeat]) -> int:
    """Steps computed again since only groups that died had them; in exact mode that leaves no trace."""
    if is_exact(evidence):
        return 0
    return len({repeat.step for repeat in repeats if repeat.excused and not repeat.restored})


def steps_restored_over(repeats: Iterable[Repeat]) -> int:
    """Committed steps that were computed again because all groups had died, each time counted."""
    return sum(repeat.excused and repeat.restored for repeat in repeats)


def rounds_recomputed(evidence: Evidence, eras: Eras) -> int:
    """Rounds of committed steps that were computed in one attempt more, each time counted.

    What a restore from a save has computed again is not among them.
    """
    committed = commits_by_step(evidence)
    attempts: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for (step, quorum_id), dones in rounds_by_attempt(evidence).items():
        for done in dones:
            if step in committed:
                attempts[eras.at(quorum_id).number, step, done.round].add(quorum_id)
    return sum(len(quorum_ids) - 1 for quorum_ids in attempts.values())


def last_commits(evidence: Evidence, eras: Eras) -> list[LedgerLine]:
    """One committed line for each step of the final trajectory, of its last quorum, steps rising."""
    return [lines[-1] for lines in _trajectory(evidence, eras)]


def final_digest(evidence: Evidence, eras: Eras) -> str | None:
    """The digest after the last committed step, None where no group computed it."""
    lines = _trajectory(evidence, eras)
    digests = [line.digest for line in lines[-1] if line.digest is not None] if lines else []
    return digests[-1] if digests else None


def _trajectory(evidence: Evidence, eras: Eras) -> list[list[LedgerLine]]:
    """The committed lines of each step that count in the end, steps rising."""
    steps = ([line for line in lines if eras.counts(line)] for lines in commits_by_step(evidence).values())
    return [lines for lines in steps if lines]


def saves(evidence: Evidence) -> tuple[list[float], list[float]]:
    """Of each save: seconds that its writing took, and seconds that training stood still for it."""
    events = evidence.of(EventKind.SAVE)
    return [event.number("seconds") for event in events], [event.number("blocked_s") for event in events]


def survivor_stalls_s(evidence: Evidence) -> list[float | None]:
    """For each kill of a group: seconds that the others waited for a commit, less a typical step.

    The attempt under way at the kill may still commit, and the wait comes after it: so all waits
    count, from the kill to the first commit in a quorum of later id than the victim's, and the
    longest is taken. In the order of `evidence.deaths`; None for kills after which no other life that
    had begun before committed any more.
    """
    done = sorted(commits(evidence.lines), key=lambda line: line.t)
    begun = life_starts(evidence)
    typical = median(line.seconds.total for line in done) if done else 0.0
    stalls: list[float | None] = []
    for kill, quorum_id in zip(evidence.deaths, _quorums_at_deaths(evidence), strict=True):
        later = (
            line
            for line in done[bisect_right(done, kill.t, key=lambda line: line.t) :]
            if line.group != kill.group and begun.get(life(line), kill.t) <= kill.t
        )
        waits = _waits_s(later, kill.t, quorum_id)
        stalls.append(max(0.0, max(waits) - typical) if waits else None)
    return stalls


def _waits_s(later: Iterable[LedgerLine], since: float, quorum_id: int) -> list[float]:
    """Seconds between the first commits of steps after `since`, up to one in a later quorum."""
    waits: list[float] = []
    step = None
    for line in later:
        if line.step != step:
            waits.append(line.t - since)
            since, step = line.t, line.step
        if quorum(line) > quorum_id:
            break
    return waits


def _quorums_at_deaths(evidence: Evidence) -> list[int]:
    """The last quorum id that each victim is known to have been in, NO_QUORUM without any."""
    met: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for event in evidence.of(EventKind.QUORUM):
        for group in group_numbers(event.values["participants"]):
            met[group].append((event.t, event.integer("quorum_id") or 0))
    for line in evidence.lines:
        for group in line.participants:
            met[group].append((line.t, quorum(line)))
    return [
        max((q for t, q in met.get(_group_of(kill), ()) if t <= kill.t), default=NO_QUORUM)
        for kill in evidence.deaths
    ]


def _group_of(kill: Event) -> int:
    return -1 if kill.group is None else kill.group


def disasters_s(evidence: Evidence, eras: Eras) -> list[float]:
    """For each disaster: seconds from the last commit before to the first one after it."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for line in commits(evidence.lines):
        number = eras.of(line).number
        first[number] = min(line.t, first.get(number, line.t))
        last[number] = max(line.t, last.get(number, line.t))
    numbers = [era.number for era in eras.disasters]
    return [first[number] - last[number - 1] for number in numbers if number in first and number - 1 in last]


def rejoins_s(evidence: Evidence, eras: Eras) -> list[float | None]:
    """For each kill of a group: seconds to its next commit in a new life, where there was one.

    In the order of `evidence.deaths`; None where there was none, and for kills that were part of a
    disaster.
    """
    begun = life_starts(evidence)
    waits: list[float | None] = []
    for kill, quorum_id in zip(evidence.deaths, _quorums_at_deaths(evidence), strict=True):
        lines, era = evidence.ledgers.get(_group_of(kill), ()), eras.at(quorum_id)
        back = [
            line.t - kill.t
            for line in commits(lines)
            if begun.get(life(line), line.t) > kill.t and eras.of(line) is era
        ]
        waits.append(min(back, default=None))
    return waits


def heals(evidence: Evidence) -> list[tuple[float, float]]:
    """(seconds, bytes) of each heal of a group: its slowest rank, all its ranks' bytes."""
    by_life: dict[tuple[int | None, str | None, int | None], list[Event]] = defaultdict(list)
    for event in evidence.of(EventKind.HEAL):
        by_life[event.group, event.incarnation, event.integer("step")].append(event)
    return [
        (max(event.number("seconds") for event in events), sum(event.number("bytes") for event in events))
        for events in by_life.values()
    ]


def heal_mb_per_s(evidence: Evidence) -> float | None:
    """Median over heals of the group's megabytes (10^6 bytes) per second."""
    rates = [size / 1e6 / seconds for seconds, size in heals(evidence) if seconds > 0]
    return round(median(rates), 3) if rates else None


def breadth_mean(evidence: Evidence) -> float | None:
    """Mean share of the groups alive that took part, over committed attempts.

    A group is alive from the first sign of a life of it to its death. It takes part when it is in
    the quorum.
    """
    events = sorted(evidence.events, key=lambda event: event.t)
    alive: set[int] = set()
    shares: list[float] = []
    index = 0
    attempts = [lines[0] for lines in commits_by_attempt(evidence).values()]
    for line in sorted(attempts, key=lambda line: line.t):
        while index < len(events) and events[index].t <= line.t:
            _live_or_die(alive, events[index])
            index += 1
        present = set(line.participants)
        shares.append(len(present) / max(1, len(present | alive)))
    return round(fmean(shares), 4) if shares else None


def _live_or_die(alive: set[int], event: Event) -> None:
    if event.kind is EventKind.JOB_STARTED:
        alive.clear()
    if event.group is None:
        return
    if is_death(event):
        alive.discard(event.group)
    elif event.kind is EventKind.GROUP_STARTED:
        alive.add(event.group)
