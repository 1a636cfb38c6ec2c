"""What each group did at each moment of a run: intervals without gap or overlap, each with its cause.

How each second gets its cause:

- From the launch to `group_started` a group is RESTARTING; without a launch on record, from the start of
  its process. Until its first attempt it waits for a QUORUM, but for the reading of a save, which is
  HEALING.
- An attempt's line tells its phases. `replica.goodput.cause_of` gives each a cause, by what came of the
  attempt. What no line tells of, while a group lives, was QUORUM.
- A life ends with a kill, an eviction, the end of its launcher, a pause after which it wrote nothing, or
  the word of others that it died, though not before its last line or event: hosts' clocks differ. What it
  did since its last line is ENDED_ATTEMPT. Then it is DETECTION until it is launched again; if it never
  is, NOT_PROVISIONED from the end of its launcher on.
- A life that is followed by another without such a sign ended with its last line or event.
- From its `finished` on, and before its first launch, a group is NOT_PROVISIONED.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from replica.goodput import Cause, Doing, Fate, cause_of, fate_of
from replica.ledger import EventKind, LedgerLine, Outcome
from train.evidence.blows import find_blows
from train.evidence.eras import Eras, find_eras
from train.evidence.files import Event, Evidence
from train.evidence.history import Life, is_death, life, remembered

# The order in which the phases of an attempt follow each other.
PHASES = (
    Doing.QUORUM,
    Doing.CONFIGURE,
    Doing.HEAL,
    Doing.COMPUTE,
    Doing.REDUCE,
    Doing.VOTE,
    Doing.COMMIT,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A time that a group spent on one thing, in seconds since the epoch. step: of the attempt, if any."""

    group: int
    begin_t: float
    end_t: float
    cause: Cause
    step: int | None = None

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end_t - self.begin_t

    def within(self, begin_t: float, end_t: float) -> "Interval":
        """The part of it between two times."""
        if begin_t <= self.begin_t and self.end_t <= end_t:
            return self
        return replace(self, begin_t=max(begin_t, self.begin_t), end_t=min(end_t, self.end_t))


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The intervals of each group, in order; groups that joined or left with their cluster cover a part.

    overlap_s: seconds of attempts that had to be cut, since they claim time that was spent already.
    untold_s: seconds after the first attempt of a life of which no line tells; they count as QUORUM.
    """

    begin_t: float
    end_t: float
    groups: Mapping[int, tuple[Interval, ...]]
    overlap_s: float
    untold_s: float

    @property
    def intervals(self) -> Iterator[Interval]:
        """All intervals, group by group."""
        return (each for group in self.groups.values() for each in group)

    def of(self, group: int, begin_t: float, end_t: float) -> Iterator[Interval]:
        """What lies between two times, cut to them."""
        intervals = self.groups.get(group, ())
        first = bisect_right(intervals, begin_t, key=lambda each: each.end_t)
        for index in range(first, len(intervals)):
            if intervals[index].begin_t >= end_t:
                return
            yield intervals[index].within(begin_t, end_t)


@remembered
def find_timeline(evidence: Evidence) -> Timeline:
    """The timeline of a run, from the first thing written down to the last."""
    eras = find_eras(evidence)
    times = [event.t for event in evidence.events] + [line.t for line in evidence.lines]
    begin_t, end_t = min(times, default=0.0), max(times, default=0.0)
    spans = _spans(evidence, begin_t, end_t)
    members = sorted(set().union(*(present for _, _, present in spans)))
    events, deaths = _events_by_group(evidence, members), _seen_deaths(evidence)
    groups: dict[int, tuple[Interval, ...]] = {}
    overlap_s = untold_s = 0.0
    for group in members:
        signs: list[Event | LedgerLine] = [*evidence.ledgers.get(group, ()), *events[group]]
        walk = _Walk(group, signs, deaths, eras, begin_t)
        own = _joined([(begin, end) for begin, end, present in spans if group in present])
        groups[group] = tuple(_cut(walk.to(end_t), own))
        overlap_s += walk.overlap_s
        untold_s += walk.untold_s
    return Timeline(begin_t=begin_t, end_t=end_t, groups=groups, overlap_s=overlap_s, untold_s=untold_s)


def _spans(evidence: Evidence, begin_t: float, end_t: float) -> list[tuple[float, float, frozenset[int]]]:
    """From when to when which groups were in the job: as many as each cluster said, and who came beside."""
    starts = evidence.of(EventKind.JOB_STARTED)
    if not starts:
        return [(begin_t, end_t, frozenset(evidence.ledgers))]
    marks = [begin_t, *(start.t for start in starts[1:]), end_t]
    signs = [(line.t, line.group) for line in evidence.lines]
    signs += [
        (event.t, event.group) for event in evidence.of(EventKind.GROUP_STARTED) if event.group is not None
    ]
    found = []
    for start, (begin, end) in zip(starts, pairwise(marks), strict=True):
        came = {group for t, group in signs if begin <= t <= end}
        found.append((begin, end, frozenset(range(start.integer("groups") or 0)) | came))
    return found


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin_t, end_t in spans:
        if found and found[-1][1] == begin_t:
            begin_t = found.pop()[0]
        found.append((begin_t, end_t))
    return found


def _cut(intervals: Sequence[Interval], spans: Sequence[tuple[float, float]]) -> Iterator[Interval]:
    for begin_t, end_t in spans:
        for each in intervals:
            if each.end_t > begin_t and each.begin_t < end_t:
                yield each.within(begin_t, end_t)


def fates(ledger: Sequence[LedgerLine], eras: Eras) -> list[Fate]:
    """What came of each attempt of a group in the end."""
    found: list[Fate] = []
    later: LedgerLine | None = None
    for line in reversed(ledger):
        dealt = any(group == line.group for _, group in line.rounds)
        fate = fate_of(line.outcome, healed=line.healed_from is not None, dealt=dealt)
        if line.outcome is Outcome.COMMITTED and not eras.counts(line):
            fate = Fate.TAKEN_BACK
        if fate is Fate.KEPT:
            same = later is not None and (life(line), line.step) == (life(later), later.step)
            if not same or found[-1] not in (Fate.COMMITTED, Fate.SPARE, Fate.KEPT):
                fate = Fate.LOST
        found.append(fate)
        later = line
    return found[::-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _SeenDead:
    """Others have seen that a life is over."""

    t: float
    incarnation: str


def _seen_deaths(evidence: Evidence) -> Mapping[Life, float]:
    """When others saw the end of each life of which only they tell."""
    return {blow.life: blow.t for blow in find_blows(evidence) if blow.life is not None}


class _Walk:
    """Walks through what is on record of one group, and lays out what it did."""

    def __init__(
        self,
        group: int,
        signs: Sequence[Event | LedgerLine],
        deaths: Mapping[Life, float],
        eras: Eras,
        begin_t: float,
    ) -> None:
        """signs: all that say something of this group. deaths: when others saw a life end."""
        self.overlap_s = self.untold_s = 0.0
        self._group = group
        self._at = begin_t
        self._found: list[Interval] = []
        # While no life is on: what the group is taken to do.
        self._idle: Cause = Cause.NOT_PROVISIONED
        self._life: str | None = None
        self._begun: set[str] = set()
        # When the attempt began of which there is no line yet; None before the first of a life.
        self._trying_t: float | None = None
        # Since when the group has been gone for good, should it not come back.
        self._gone_t = begin_t
        ledger = [sign for sign in signs if isinstance(sign, LedgerLine)]
        self._fates = dict(zip(map(id, ledger), fates(ledger, eras), strict=True))
        self._lines: dict[str, list[LedgerLine]] = defaultdict(list)
        for line in ledger:
            self._lines[line.incarnation].append(line)
        by_time = sorted(signs, key=lambda sign: sign.t)
        self._last_sign = {sign.incarnation: sign.t for sign in by_time if sign.incarnation is not None}
        # At one moment a life's own signs come before its death.
        dead = (
            _SeenDead(t=max(deaths[group, one], t), incarnation=one)
            for one, t in self._last_sign.items()
            if (group, one) in deaths
        )
        self._signs = sorted([*by_time, *dead], key=lambda sign: sign.t)

    def to(self, end_t: float) -> list[Interval]:
        """Everything up to this time."""
        for sign in self._signs:
            if isinstance(sign, LedgerLine):
                self._take_line(sign)
            elif isinstance(sign, Event):
                self._take_event(sign)
            elif sign.incarnation == self._life:
                self._die(sign.t)
        if self._life is not None:
            self._die(end_t)
        if self._idle is Cause.DETECTION:
            self._fill(self._gone_t, Cause.DETECTION)
            self._idle = Cause.NOT_PROVISIONED
        self._fill(end_t, self._idle)
        return self._found

    def _fill(self, until_t: float, cause: Cause, step: int | None = None) -> None:
        if until_t <= self._at:
            return
        last = self._found[-1] if self._found else None
        if last is not None and (last.cause, last.step) == (cause, step):
            self._found[-1] = replace(last, end_t=until_t)
        else:
            self._found.append(
                Interval(group=self._group, begin_t=self._at, end_t=until_t, cause=cause, step=step)
            )
        self._at = until_t

    def _take_event(self, event: Event) -> None:
        t, kind = event.t, event.kind
        if kind is EventKind.FINISHED:
            self._finish(event)
        elif is_death(event):
            self._end(t, exited=kind is EventKind.GROUP_EXITED)
        elif kind is EventKind.GROUP_PAUSED:
            if self._is_last(t):
                self._end(t, exited=False)
        elif kind is EventKind.JOB_STARTED:
            self._lose_track()
        elif kind is EventKind.GROUP_LAUNCHED:
            self._lose_track()
            self._fill(t, self._idle)
            self._idle = Cause.RESTARTING
        elif kind is EventKind.GROUP_STARTED:
            self._begin(event.incarnation or "", t - event.number("age_s"), t)
        elif event.incarnation == self._life and kind is EventKind.BACKSTOP_READ:
            self._fill(t - event.number("seconds"), Cause.QUORUM)
            self._fill(t, Cause.HEALING)
        elif event.incarnation == self._life and kind is EventKind.QUORUM and self._trying_t is None:
            self._trying_t = t

    def _is_last(self, t: float) -> bool:
        """Whether the life that is on wrote nothing after this time."""
        return self._life is not None and self._last_sign.get(self._life, t) <= t

    def _begin(self, incarnation: str, from_t: float, t: float) -> None:
        """A life has come up, whose process started at from_t."""
        if incarnation == self._life:
            return
        self._lose_track()
        self._fill(from_t, self._idle)
        self._fill(t, Cause.RESTARTING)
        self._life, self._trying_t = incarnation, None
        self._begun.add(incarnation)

    def _lose_track(self) -> None:
        """The life that is on has ended, unseen, with its last sign."""
        if self._life is not None:
            self._die(self._last_sign.get(self._life, self._at))

    def _end(self, t: float, *, exited: bool) -> None:
        """A life, or the try to start one, has ended by now."""
        if self._life is not None:
            self._die(t)
        elif self._idle is Cause.RESTARTING:
            self._fill(t, Cause.RESTARTING)
            self._idle, self._gone_t = Cause.DETECTION, t
        elif exited and self._idle is Cause.DETECTION:
            self._gone_t = t

    def _die(self, t: float) -> None:
        under_way = next((line for line in self._lines[self._life or ""] if line.t > self._at), None)
        if under_way is not None and under_way.t - under_way.seconds.total < t:
            self._lay(under_way, t)
        if self._trying_t is not None:
            self._fill(min(t, self._trying_t), Cause.QUORUM)
            self._fill(t, Cause.ENDED_ATTEMPT)
        else:
            self._fill(t, Cause.QUORUM)
        self._life, self._idle, self._gone_t = None, Cause.DETECTION, t

    def _finish(self, event: Event) -> None:
        if event.incarnation == self._life:
            self._fill(event.t - event.number("save_s"), Cause.QUORUM)
            self._fill(event.t, Cause.SAVE)
            self._life, self._idle = None, Cause.NOT_PROVISIONED

    def _take_line(self, line: LedgerLine) -> None:
        if line.incarnation != self._life:
            if line.incarnation in self._begun:  # it is dead by now
                return
            begun_t = line.t - line.seconds.total
            self._begin(line.incarnation, begun_t, begun_t)
        self._lay(line, line.t)
        self._trying_t = line.t

    def _lay(self, line: LedgerLine, until_t: float) -> None:
        """What a line tells of an attempt, and of the time right before it, as far as until_t."""
        seconds, fate = line.seconds, self._fates[id(line)]
        begun_t = line.t - seconds.total
        if self._trying_t == self._at:  # right after the attempt before
            self._fill(min(begun_t, until_t, self._at + seconds.save), Cause.SAVE)
            self._fill(min(begun_t, until_t, self._at + seconds.script), Cause.PRODUCTIVE)
            self.untold_s += max(0.0, min(begun_t, until_t) - self._at)
        self._fill(min(begun_t, until_t), Cause.QUORUM)
        if self._found and begun_t < until_t:
            self.overlap_s += max(0.0, self._at - begun_t)
        untold_s = max(0.0, seconds.total - sum(getattr(seconds, phase) for phase in PHASES))
        self.untold_s += untold_s
        end_t = begun_t + untold_s
        for phase in PHASES:
            end_t += getattr(seconds, phase)
            self._fill(min(end_t, until_t), cause_of(phase, fate), line.step)
        self._fill(min(line.t, until_t), cause_of(phase, fate), line.step)


def _events_by_group(evidence: Evidence, groups: Sequence[int]) -> Mapping[int, list[Event]]:
    """The events that say something of what a group did."""
    found: dict[int, list[Event]] = defaultdict(list)
    for event in evidence.events:
        about = groups if event.kind is EventKind.JOB_STARTED else [event.group]
        for group in about:
            if group is not None:
                found[group].append(event)
    return found
