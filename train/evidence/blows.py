"""The blows that a run took: kills, and deaths of groups that only the others saw; pure.

A local cluster writes down whom it kills. Elsewhere, and of groups that die by themselves, there is only
the word of the others that a group is gone. Which life that was follows from quorum ids, so that hosts'
clocks need not agree. A life that finished is no death, nor is one that was only cut off and went on.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from replica.ledger import EventKind, KillTarget
from train.evidence.files import Event, Evidence
from train.evidence.history import (
    NO_QUORUM,
    Life,
    group_numbers,
    life_of,
    life_starts,
    lives,
    quorum,
    quorum_spans,
    remembered,
)

UNKNOWN_TARGET = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blow:
    """A kill, or a death that only others saw.

    t: when it was struck, or first seen, in seconds since the epoch. target: of KillTarget, or
    UNKNOWN_TARGET. group: the victim, None for the Lighthouse. quorum_id: the last quorum that the victim
    was in. Of deaths that only others saw, life is the one that died as far as it left a sign, and
    witnesses are the events of those who saw it, the earliest first; of kills there are none.
    """

    t: float
    target: str
    group: int | None
    rank: int | None
    step: int | None
    quorum_id: int
    life: Life | None = None
    witnesses: tuple[Event, ...] = ()

    @property
    def is_death(self) -> bool:
        """Whether it cost a group its life."""
        return self.target != KillTarget.LIGHTHOUSE

    @property
    def missed_in(self) -> int:
        """The first quorum in which others saw that the victim was gone; only where there are witnesses."""
        return min(witness.integer("quorum_id") or 0 for witness in self.witnesses)


@remembered
def find_blows(evidence: Evidence) -> tuple[Blow, ...]:
    """All blows, in order of time."""
    meetings = _meetings(evidence)
    found = [*_kills(evidence, meetings), *_seen_deaths(evidence, meetings)]
    return tuple(sorted(found, key=lambda blow: blow.t))


def _meetings(evidence: Evidence) -> Mapping[int, Mapping[int, float]]:
    """By group: the quorums that it was in, and when the first of its members wrote that down."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    signs: list[tuple[int, Iterable[int], float]] = []
    for event in evidence.of(EventKind.QUORUM):
        participants = group_numbers(event.values["participants"])
        signs.append((event.integer("quorum_id") or 0, participants, event.t))
    for quorum_id, members, t in chain(signs, ((quorum(x), x.participants, x.t) for x in evidence.lines)):
        for group in members:
            found[group][quorum_id] = min(t, found[group].get(quorum_id, t))
    return found


def _kills(evidence: Evidence, meetings: Mapping[int, Mapping[int, float]]) -> Iterator[Blow]:
    """The kills; they and their victims are on one machine, so that times say what came first."""
    times: dict[int, list[float]] = {}
    highest: dict[int, list[int]] = {}
    for member, met in meetings.items():
        by_time = sorted((t, quorum_id) for quorum_id, t in met.items())
        times[member] = [t for t, _ in by_time]
        highest[member] = list(accumulate((quorum_id for _, quorum_id in by_time), max))
    for kill in evidence.of(EventKind.KILL):
        group = kill.group
        before = 0 if group is None else bisect_right(times.get(group, []), kill.t)
        yield Blow(
            t=kill.t,
            target=str(kill.values["target"]),
            group=group,
            rank=kill.integer("rank"),
            step=kill.integer("step"),
            quorum_id=highest[group][before - 1] if group is not None and before > 0 else NO_QUORUM,
        )


def _seen_deaths(evidence: Evidence, meetings: Mapping[int, Mapping[int, float]]) -> Iterator[Blow]:
    """The deaths of which others tell and that no kill explains."""
    seen = _by_victim(evidence, meetings)
    if not seen:
        return
    told = _killed_lives(evidence) | {life_of(event) for event in evidence.of(EventKind.FINISHED)}
    spans, own, steps = quorum_spans(evidence), _lives_by_group(evidence), _steps(evidence)
    gone: set[Life] = set()
    for (group, quorum_id), witnesses in sorted(seen.items(), key=lambda item: item[0]):
        possible = [one for one in _lives_in(quorum_id, own.get(group, ()), spans) if one not in gone]
        ended = [one for one in possible if one in told]
        victim = next(iter(ended or possible), None)
        if victim is not None and spans.get(victim, (quorum_id, quorum_id))[1] > quorum_id:
            continue
        if victim is not None:
            gone.add(victim)
        if not ended:
            yield _seen_death(group, quorum_id, victim, witnesses, steps)


def _seen_death(
    group: int, quorum_id: int, life: Life | None, witnesses: list[Event], steps: Mapping[int, int]
) -> Blow:
    witnesses.sort(key=lambda event: event.t)
    return Blow(
        t=witnesses[0].t,
        target=UNKNOWN_TARGET,
        group=group,
        rank=None,
        step=steps.get(witnesses[0].integer("quorum_id") or 0),
        quorum_id=quorum_id,
        life=life,
        witnesses=tuple(witnesses),
    )


def _by_victim(
    evidence: Evidence, meetings: Mapping[int, Mapping[int, float]]
) -> Mapping[tuple[int, int], list[Event]]:
    """Who saw which death: by the group, and the last quorum that it was in before they missed it."""
    quorums = {group: sorted(met) for group, met in meetings.items()}
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in evidence.of(EventKind.DEATH_SEEN):
        missed_in = event.integer("quorum_id")
        if missed_in is None:
            continue
        for group in group_numbers(event.values["dead"]):
            own = quorums.get(group, [])
            before = bisect_left(own, missed_in)
            found[group, own[before - 1] if before > 0 else NO_QUORUM].append(event)
    return found


def _lives_by_group(evidence: Evidence) -> Mapping[int, list[Life]]:
    """The lives of each group, one after the other."""
    found: dict[int, list[Life]] = defaultdict(list)
    for _, one in lives(evidence):
        found[one[0]].append(one)
    return found


def _killed_lives(evidence: Evidence) -> set[Life]:
    """The last life that each victim of a kill had begun by then."""
    begun: dict[int, list[tuple[float, Life]]] = defaultdict(list)
    for one, t in life_starts(evidence).items():
        begun[one[0]].append((t, one))
    for starts in begun.values():
        starts.sort()
    found = set()
    for kill in evidence.deaths:
        starts = begun.get(-1 if kill.group is None else kill.group, [])
        before = bisect_right(starts, kill.t, key=lambda start: start[0])
        if before > 0:
            found.add(starts[before - 1][1])
    return found


def _lives_in(quorum_id: int, own: Sequence[Life], spans: Mapping[Life, tuple[int, int]]) -> Sequence[Life]:
    """The lives of a group that can have been in a quorum: the last one that had told of it or of one
    before, and unless it was this one, those after it that tell of none.
    """
    after = next((at for at, one in enumerate(own) if one in spans and spans[one][0] > quorum_id), len(own))
    last = next((at for at in reversed(range(after)) if own[at] in spans), 0)
    if last < after and spans.get(own[last], (0, NO_QUORUM))[1] >= quorum_id:
        after = last + 1
    return own[last:after]


def _steps(evidence: Evidence) -> Mapping[int, int]:
    """At which step each quorum began."""
    found: dict[int, int] = {}
    for event in evidence.of(EventKind.QUORUM):
        quorum_id, step = event.integer("quorum_id") or 0, event.integer("step") or 0
        found[quorum_id] = max(step, found.get(quorum_id, step))
    return found
