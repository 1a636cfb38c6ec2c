"""Saves: who lived when one was read, as the files tell; and what shows in spite of the event's own word."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from altered_history import altered, with_event, without
from simulated_history import history
from timed_history import OUTSIDE

from replica.ledger import EventKind
from train.evidence.checker import check
from train.evidence.files import Event, Evidence
from train.evidence.violations import ViolationKind

READ: dict[str, Any] = {"incarnation": "new", "step": 5, "save": "a save", "digest": None}


def beside_the_living(evidence: Evidence) -> list[str]:
    """The sentences about saves that were read while a group lived."""
    return [found.text for found in check(evidence) if found.kind is ViolationKind.BACKSTOP_READ]


def unfinished(groups: int = 3) -> Evidence:
    """A run without a kill, cut off before its groups finish."""
    return without(
        history(4, kills=0, groups=groups, mode="exact"), lambda event: event.kind is EventKind.FINISHED
    )


def then(evidence: Evidence, *events: tuple[EventKind, Iterable[int], dict[str, Any]]) -> Evidence:
    """The run with more events at its end, each for every group named, a second apart."""
    t = max(evidence.events[-1].t, *(line.t for line in evidence.lines))
    added = []
    for kind, groups, values in events:
        for group in groups:
            t += 1.0
            added.append(Event(t=t, kind=kind, values={"group": group, **values}))
    return replace(evidence, events=(*evidence.events, *added))


EXITS = (EventKind.GROUP_EXITED, range(3), {"code": -9})
LAUNCH = (EventKind.GROUP_LAUNCHED, [0], {})
KILLS = (EventKind.KILL, range(3), {"rank": None, "target": "group", "step": 9})
READ_BY_0 = (EventKind.BACKSTOP_READ, [0], READ)


def test_save_may_be_read_when_all_groups_are_gone() -> None:
    assert beside_the_living(then(unfinished(), KILLS, READ_BY_0)) == []
    assert beside_the_living(then(unfinished(), KILLS, EXITS, LAUNCH, READ_BY_0)) == []


@pytest.mark.parametrize("kind", [EventKind.KILL, EventKind.GROUP_EXITED])
def test_one_group_that_lives_makes_it_a_violation(kind: EventKind) -> None:
    values = {"rank": None, "target": "group", "step": 9, "code": -9}
    evidence = then(unfinished(), (kind, range(2), values), LAUNCH, READ_BY_0)
    assert beside_the_living(evidence) == ["group 0 read a save while groups [2] lived"]
    found = next(each for each in check(evidence) if each.kind is ViolationKind.BACKSTOP_READ)
    assert (found.group, found.step) == (0, 5)


def test_what_counts_is_when_the_reading_began() -> None:
    slow = (EventKind.BACKSTOP_READ, [0], {**READ, "seconds": 2.5})
    killed = then(unfinished(), KILLS, slow)
    # It ends a second after the last kill, and began between the first two.
    assert beside_the_living(killed)


def test_a_round_that_ends_after_the_kill_is_no_sign_of_life() -> None:
    run = unfinished()
    last = [event for event in run.of(EventKind.ROUND_DONE) if event.group == 2][-1]
    late = (EventKind.ROUND_DONE, [2], {**last.values, "quorum_id": 10**6})
    one_rank = (EventKind.KILL, range(3), {"rank": 1, "target": "rank", "step": 9})
    assert not beside_the_living(then(run, one_rank, late, READ_BY_0))


def test_a_group_that_is_frozen_does_not_live_until_it_trains_again() -> None:
    run = unfinished()
    others = (EventKind.KILL, range(2), KILLS[2])
    paused, resumed = (EventKind.GROUP_PAUSED, [2], {}), (EventKind.GROUP_RESUMED, [2], {})
    assert beside_the_living(then(run, others, paused, READ_BY_0)) == []
    last = [event for event in run.of(EventKind.ROUND_DONE) if event.group == 2][-1]
    again = (EventKind.ROUND_DONE, [2], {**last.values, "quorum_id": 10**6})
    assert beside_the_living(then(run, others, paused, resumed, again, READ_BY_0))


def test_a_group_that_has_not_trained_yet_has_nothing_to_give() -> None:
    started = (EventKind.GROUP_STARTED, [1], {"incarnation": "also new"})
    launch = (EventKind.GROUP_LAUNCHED, [0, 1], {})
    assert beside_the_living(then(unfinished(), KILLS, launch, started, READ_BY_0)) == []


def test_a_cluster_that_starts_again_has_lost_everything_before() -> None:
    job = EventKind.JOB_STARTED, [0], {**unfinished().of(EventKind.JOB_STARTED)[0].values}
    assert beside_the_living(then(unfinished(), job, LAUNCH, READ_BY_0)) == []


def quorum(group: int, life: str, quorum_id: int) -> tuple[EventKind, Iterable[int], dict[str, Any]]:
    values = {"incarnation": life, "step": 5, "quorum_id": quorum_id, "participants": [group]}
    return EventKind.QUORUM, [group], values


def test_outside_a_local_cluster_only_who_is_in_a_later_quorum_is_known_to_have_lived() -> None:
    run = without(unfinished(), lambda event: event.kind in OUTSIDE)
    reader = quorum(0, "new", 90)
    assert beside_the_living(then(run, READ_BY_0)) == []
    assert beside_the_living(then(run, READ_BY_0, reader)) == []
    for quorum_id in (90, 91):
        lived = then(run, READ_BY_0, reader, quorum(1, "life1001", quorum_id))
        assert beside_the_living(lived) == ["group 0 read a save while groups [1] lived"]
        # That the clock of the one host is ahead of the other's is no matter.
        ahead = [replace(each, t=each.t + 500.0 * (each.group == 1)) for each in lived.events]
        assert beside_the_living(replace(lived, events=tuple(ahead)))
    # It had not trained, and had nothing to give.
    idle = then(run, quorum(1, "idle", 80), READ_BY_0, reader, quorum(1, "idle", 91))
    assert beside_the_living(idle) == []


@pytest.mark.parametrize("skew_s", [-500.0, 500.0])
def test_disasters_are_clean_whatever_the_clocks_say(skew_s: float) -> None:
    for seed in range(20):
        made = without(history(seed, disasters=2, save_every=3), lambda event: event.kind in OUTSIDE)
        events = tuple(replace(each, t=each.t + skew_s * (each.group == 1)) for each in made.events)
        lines = {
            g: tuple(replace(x, t=x.t + skew_s * (g == 1)) for x in own) for g, own in made.ledgers.items()
        }
        assert check(replace(made, events=events, ledgers=lines)) == []


def test_disasters_outside_a_local_cluster_are_clean() -> None:
    for seed in range(20):
        evidence = history(seed, disasters=2, save_every=3)
        assert check(without(evidence, lambda event: event.kind in OUTSIDE)) == []


def test_the_event_of_the_reader_is_not_believed() -> None:
    """Without a death of the others on record a read among commits is a violation, whatever it says."""
    evidence = history(7, kills=0, disasters=1)
    no_death = without(
        evidence,
        lambda event: (
            event.kind in (EventKind.KILL, EventKind.GROUP_EXITED, EventKind.GROUP_LAUNCHED)
            or (event.kind is EventKind.JOB_STARTED and event is not evidence.events[0])
            or (event.kind is EventKind.GROUP_STARTED and event.incarnation == "life1002")
        ),
    )
    assert beside_the_living(no_death)


def test_a_save_without_a_quorum_id_is_judged_by_its_step() -> None:
    evidence = history(7, kills=0, disasters=1)
    save = evidence.of(EventKind.SAVE)[0]
    assert check(with_event(evidence, save, altered(save, quorum_id=None))) == []
