"""The figures of a report, each from a run's evidence: pure."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import fmean, median

from replica.ledger import EventKind, LedgerLine, Outcome
from train.evidence.blows import Blow, find_blows
from train.evidence.eras import Eras
from train.evidence.files import Event, Evidence
from train.evidence.history import (
    Life,
    commits,
    commits_by_attempt,
    commits_by_life,
    commits_by_step,
    is_death,
    is_exact,
    life,
    life_of,
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
    """For each blow: seconds that the others waited for a commit, less a typical step.

    The attempt under way at a kill may still commit, and the wait comes after it: so all waits
    count, from the kill to the first commit in a quorum of later id than the victim's, and the
    longest is taken. Of a death that only others saw, it is the time between the last commit of one
    of them in the victim's last quorum, or before, and its next one. In the order of `find_blows`; None
    for the Lighthouse, and where no other life that had begun before committed any more.
    """
    done = sorted(commits(evidence.lines), key=lambda line: line.t)
    typical_s = median(line.seconds.total for line in done) if done else 0.0
    stalls: list[float | None] = []
    for blow in find_blows(evidence):
        wait_s = None
        if blow.witnesses:
            wait_s = _seen_wait_s(blow, commits_by_life(evidence))
        elif blow.is_death:
            wait_s = max(_waits_s(blow, done, life_starts(evidence)), default=None)
        stalls.append(None if wait_s is None else max(0.0, wait_s - typical_s))
    return stalls


def _waits_s(kill: Blow, done: Sequence[LedgerLine], begun: Mapping[Life, float]) -> Iterator[float]:
    """Seconds between the first commits of steps after the kill, up to one in a later quorum.

    done: all commits, in order of time. begun: when each life did.
    """
    since, step = kill.t, None
    for index in range(bisect_right(done, kill.t, key=lambda line: line.t), len(done)):
        line = done[index]
        if line.group == kill.group or begun.get(life(line), kill.t) > kill.t:
            continue
        if line.step != step:
            yield line.t - since
            since, step = line.t, line.step
        if quorum(line) > kill.quorum_id:
            return


def _seen_wait_s(death: Blow, done: Mapping[Life, Sequence[LedgerLine]]) -> float | None:
    """Seconds until the first of those who saw a death had committed again; done: commits of each life."""
    waits = []
    for witness in death.witnesses:
        own = done.get(life_of(witness), ())
        after = bisect_right(own, death.quorum_id, key=quorum)
        if after < len(own):
            waits.append(own[after].t - (own[after - 1].t if after > 0 else witness.t))
    return min(waits, default=None)


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
    """For each blow to a group: seconds to its next commit in a new life, where there was one.

    Of a death that only others saw, it counts from there to their own commit of the same attempt. In the
    order of `find_blows`; None for the Lighthouse, for groups that did not come back, and for blows that
    were part of a disaster.
    """
    by_quorum = {
        group: [(quorum(line), line) for line in commits(lines)] for group, lines in evidence.ledgers.items()
    }
    by_start = _first_commits_by_start(evidence)
    waits: list[float | None] = []
    for blow in find_blows(evidence):
        known: Mapping[int, Sequence[tuple[float, LedgerLine]]] = by_quorum if blow.witnesses else by_start
        own = known.get(_group_of(blow), ())
        after = bisect_right(own, blow.quorum_id if blow.witnesses else blow.t, key=lambda one: one[0])
        back = own[after][1] if after < len(own) else None
        is_back = back is not None and eras.of(back) is eras.at(blow.quorum_id)
        waits.append(_until_back_s(evidence, blow, back) if back is not None and is_back else None)
    return waits


def _first_commits_by_start(evidence: Evidence) -> Mapping[int, list[tuple[float, LedgerLine]]]:
    """By group: when each life began, in order, and the first line that it committed."""
    found: dict[int, list[tuple[float, LedgerLine]]] = defaultdict(list)
    for one, (line, *_) in commits_by_life(evidence).items():
        found[line.group].append((life_starts(evidence).get(one, line.t), line))
    for starts in found.values():
        starts.sort(key=lambda start: start[0])
    return found


def _until_back_s(evidence: Evidence, blow: Blow, back: LedgerLine) -> float:
    """Seconds from a blow to the victim's first commit after it, by the clock of one who saw both."""
    together = {life(line): line.t for line in commits_by_attempt(evidence)[back.step, quorum(back)]}
    for witness in blow.witnesses:
        if life_of(witness) in together:
            return together[life_of(witness)] - witness.t
    return max(0.0, back.t - blow.t)


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

    A group is alive from the first sign of a life of it to its death; where only others saw that, it is
    dead in the quorum in which they missed it. It takes part when it is in the quorum.
    """
    attempts = sorted(commits_by_attempt(evidence).items(), key=lambda item: item[0][::-1])
    alive = _Alive(evidence)
    shares: list[float] = []
    for (_, quorum_id), (line, *_) in attempts:
        present = set(line.participants)
        shares.append(len(present) / max(1, len(present | alive.at(quorum_id, line.t))))
    return round(fmean(shares), 4) if shares else None


class _Alive:
    """Which groups live, as quorum by quorum goes by."""

    def __init__(self, evidence: Evidence) -> None:
        kinds = (EventKind.JOB_STARTED, EventKind.GROUP_STARTED)
        told = (event for event in evidence.events if event.kind in kinds or is_death(event))
        self._told = sorted(told, key=lambda event: event.t)
        seen = [blow for blow in find_blows(evidence) if blow.witnesses]
        self._seen = sorted(seen, key=lambda blow: blow.missed_in)
        self._groups: set[int] = set()
        self._over: set[Life | None] = set()
        self._told_index = self._seen_index = 0

    def at(self, quorum_id: int, t: float) -> set[int]:
        """The groups alive at a commit; asked for quorum ids that never fall."""
        while self._told_index < len(self._told) and self._told[self._told_index].t <= t:
            self._take(self._told[self._told_index])
            self._told_index += 1
        while self._seen_index < len(self._seen) and self._seen[self._seen_index].missed_in <= quorum_id:
            death = self._seen[self._seen_index]
            self._groups.discard(_group_of(death))
            self._over.add(death.life)
            self._seen_index += 1
        return self._groups

    def _take(self, event: Event) -> None:
        if event.kind is EventKind.JOB_STARTED:
            self._groups.clear()
        elif event.kind is EventKind.GROUP_STARTED:
            if event.group is not None and life_of(event) not in self._over:
                self._groups.add(event.group)
        elif event.group is not None:
            self._groups.discard(event.group)


def _group_of(blow: Blow) -> int:
    return -1 if blow.group is None else blow.group
