"""Goodput: which seconds of a run went into what, what each kill cost, and the published measures; pure."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from replica.goodput import Cause
from replica.ledger import LedgerLine
from train.evidence import figures
from train.evidence.blows import Blow, find_blows
from train.evidence.eras import Eras
from train.evidence.files import Evidence
from train.evidence.history import NO_QUORUM, commits, commits_by_attempt, quorum
from train.evidence.timeline import Interval, Timeline

# What a kill can cost the others until their next commit, and the victim until its own.
SURVIVORS_LOSE = frozenset({Cause.ENDED_ATTEMPT, Cause.RECONFIGURING, Cause.QUORUM})
VICTIM_LOSES = SURVIVORS_LOSE | {Cause.DETECTION, Cause.RESTARTING, Cause.HEALING}


def goodput(evidence: Evidence, timeline: Timeline) -> dict[str, Any]:
    """Every second of every group, by cause, in seconds summed over groups.

    `ratio` is the share of productive compute, `lost_s_by_cause` all the rest. With the productive
    seconds it makes up `whole_s`: wall time times groups. `by_group` holds the same for each group, and
    `by_kill` what each kill cost. `accounted` is how much of `whole_s` the evidence claims: more
    than 1 where attempts of a group overlap. `untold_s` is what no line tells of between a life's first
    attempt and its last; it counts as waiting for a quorum.
    """
    table = {group: _by_cause(intervals) for group, intervals in timeline.groups.items()}
    seconds = _by_cause(timeline.intervals)
    whole_s = sum(seconds.values())
    return {
        "ratio": round(seconds[Cause.PRODUCTIVE] / whole_s, 4) if whole_s > 0 else None,
        "lost_s_by_cause": _rounded(
            {cause: s for cause, s in seconds.items() if cause is not Cause.PRODUCTIVE}
        ),
        "productive_s": round(seconds[Cause.PRODUCTIVE], 3),
        "whole_s": round(whole_s, 3),
        "accounted": round(1 + timeline.overlap_s / whole_s, 4) if whole_s > 0 else None,
        "untold_s": round(timeline.untold_s, 3),
        "by_group": {str(group): _rounded(causes) for group, causes in table.items()},
        "by_kill": by_kill(evidence, timeline),
    }


def shares_by_cause(account: Mapping[str, Any]) -> dict[str, float]:
    """The share of all groups' time that each cause has, from what `goodput` returned; productive first."""
    whole_s = account["whole_s"] or 1.0
    seconds = {str(Cause.PRODUCTIVE): account["productive_s"], **account["lost_s_by_cause"]}
    return {cause: value / whole_s for cause, value in seconds.items() if value > 0}


def _by_cause(intervals: Iterable[Interval], causes: Collection[Cause] = tuple(Cause)) -> dict[Cause, float]:
    found = dict.fromkeys(causes, 0.0)
    for interval in intervals:
        if interval.cause in found:
            found[interval.cause] += interval.seconds
    return found


def _rounded(seconds: Mapping[Cause, float]) -> dict[str, float]:
    return {str(cause): round(value, 3) for cause, value in seconds.items()}


def by_kill(evidence: Evidence, timeline: Timeline) -> list[dict[str, Any]]:
    """For each kill, and each death that only others saw: `t` in seconds since the start of the run, what
    was hit, and the seconds lost to it.

    From its last commit before the blow to the first one of an attempt that it began after it, the
    victim loses all but productive time, sums and saves; the others lose the attempts that ended and
    the way to a new quorum. Where blows follow each other closely, a second counts for the first.
    """
    done = {group: commits(lines) for group, lines in evidence.ledgers.items()}
    blows = find_blows(evidence)
    counted: dict[int, float] = defaultdict(lambda: timeline.begin_t)
    found = []
    for blow, again in zip(blows, _next_deaths(blows), strict=True):
        lost: dict[int, Mapping[Cause, float]] = {}
        for group in timeline.groups:
            is_victim = group == blow.group
            begin_t, end_t = _reach(blow, done.get(group, []), timeline, is_victim=is_victim)
            end_t = min(end_t, again.get(group, end_t))
            causes = VICTIM_LOSES if is_victim else SURVIVORS_LOSE
            lost[group] = _by_cause(timeline.of(group, max(begin_t, counted[group]), end_t), causes)
            counted[group] = max(counted[group], end_t)
        found.append(_row(blow, lost, timeline))
    return found


def _next_deaths(blows: Sequence[Blow]) -> Iterator[Mapping[int | None, float]]:
    """For each blow: when each group dies next after it."""
    again: dict[int | None, float] = {}
    found = []
    for blow in reversed(blows):
        found.append(dict(again))
        if blow.is_death:
            again[blow.group] = blow.t
    return reversed(found)


def _reach(
    blow: Blow, done: Sequence[LedgerLine], timeline: Timeline, *, is_victim: bool
) -> tuple[float, float]:
    """For a group with these commits: from when until when a blow can have cost it time."""
    if blow.witnesses:
        before = after = bisect_right(done, blow.quorum_id, key=quorum)
    else:
        before = bisect_right(done, blow.t, key=lambda line: line.t)
        after = bisect_right(done, blow.t, key=lambda line: line.t - line.seconds.total)
    begin_t = timeline.begin_t if is_victim else blow.t
    return (
        done[before - 1].t if before > 0 else begin_t,
        done[after].t if after < len(done) else timeline.end_t,
    )


def _row(blow: Blow, lost: Mapping[int, Mapping[Cause, float]], timeline: Timeline) -> dict[str, Any]:
    """What is told of one blow; lost: by group and cause, in seconds."""
    by_group = {group: sum(seconds.values()) for group, seconds in lost.items()}
    whole_s = sum(by_group.values())
    victim_s = by_group.get(blow.group, 0.0) if blow.group is not None else 0.0
    causes = {cause: sum(seconds.get(cause, 0.0) for seconds in lost.values()) for cause in Cause}
    return {
        "t": round(blow.t - timeline.begin_t, 3),
        "target": blow.target,
        "group": blow.group,
        "rank": blow.rank,
        "step": blow.step,
        "lost_s": round(whole_s, 3),
        "victim_s": round(victim_s, 3),
        "others_s": round(whole_s - victim_s, 3),
        "lost_s_by_cause": _rounded({cause: s for cause, s in causes.items() if s > 0}),
    }


def measures(evidence: Evidence, eras: Eras) -> dict[str, float | None]:
    """The four measures by which fault-tolerant training is published, side by side.

    `discarded_steps_per_kill`: attempts whose work was thrown away, for each kill, and each death that
    only others saw. `committed_of_attempted`:
    the share of attempts (a step under one quorum) that were committed. `token_rate_of_fault_free`:
    steps, all of which have the same tokens, that counted in the end for each second between the first
    and the last commit, against the rate of `fault_free_step_s`. `breadth_mean`: the mean share of the
    living groups that took part. Each is None where the evidence cannot tell.
    """
    kills = len(find_blows(evidence))
    attempts = {(line.step, quorum(line)) for line in evidence.lines if quorum(line) != NO_QUORUM}
    committed = [attempt for attempt in commits_by_attempt(evidence) if attempt in attempts]
    undisturbed_s = fault_free_step_s(evidence)
    return {
        "discarded_steps_per_kill": _share(figures.steps_discarded(evidence), kills),
        "committed_of_attempted": _share(len(committed), len(attempts)),
        "token_rate_of_fault_free": _token_rate(evidence, eras, undisturbed_s),
        "breadth_mean": figures.breadth_mean(evidence),
        "fault_free_step_s": None if undisturbed_s is None else round(undisturbed_s, 4),
    }


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def fault_free_step_s(evidence: Evidence) -> float | None:
    """The median time between two steps one after the other, both committed by one quorum of all groups."""
    first = _first_commits(evidence)
    broadest = max((len(line.participants) for line in first.values()), default=0)
    waits = []
    for (step, quorum_id), line in first.items():
        before = first.get((step - 1, quorum_id))
        if before is not None and len(line.participants) == broadest:
            waits.append(line.t - before.t)
    return median(waits) if waits else None


def _first_commits(evidence: Evidence) -> Mapping[tuple[int, int], LedgerLine]:
    """The line of the group that was first to commit, for each attempt."""
    attempts = commits_by_attempt(evidence)
    return {attempt: min(lines, key=lambda line: line.t) for attempt, lines in attempts.items()}


def _token_rate(evidence: Evidence, eras: Eras, undisturbed_s: float | None) -> float | None:
    times = [line.t for line in commits(evidence.lines)]
    steps = len(figures.last_commits(evidence, eras))
    if undisturbed_s is None or steps < 2 or max(times) <= min(times):
        return None
    return _share((steps - 1) * undisturbed_s, max(times) - min(times))
