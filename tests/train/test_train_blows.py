"""Blows: kills, and deaths that only others saw; which life died, whatever the clocks of hosts say."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_history import history
from test_train_report import event, evidence, kill, line, start
from timed_history import OUTSIDE, timed

from replica.goodput import Cause
from replica.ledger import EventKind
from train.evidence import figures
from train.evidence.blows import find_blows
from train.evidence.eras import find_eras
from train.evidence.files import Event, Evidence
from train.evidence.goodput import goodput
from train.evidence.last_signs import last_signs
from train.evidence.timeline import find_timeline
from train.report import build_report, format_report


def met(t: float, group: int, quorum_id: int, *participants: int, life: str = "", step: int = 1) -> Event:
    values = {"quorum_id": quorum_id, "participants": list(participants), "step": step}
    return event(t, EventKind.QUORUM, group=group, incarnation=life or f"life{group}", **values)


def seen(t: float, group: int, quorum_id: int, *dead: int) -> Event:
    values = {"quorum_id": quorum_id, "dead": list(dead)}
    return event(t, EventKind.DEATH_SEEN, group=group, incarnation=f"life{group}", **values)


def facts(*events: Event, lines: Any = ()) -> list[tuple[float, str, int | None, Any, int]]:
    blows = find_blows(evidence(list(lines), *events))
    return [(blow.t, blow.target, blow.group, blow.life and blow.life[1], blow.quorum_id) for blow in blows]


THREE = [met(1, group, 4, 0, 1, 2) for group in (0, 1, 2)]


def test_a_death_that_two_saw_is_one() -> None:
    events = [*THREE, met(5, 1, 6, 1, 2, step=7), seen(5, 1, 6, 0), seen(4, 2, 6, 0)]
    assert facts(*events) == [(4, "unknown", 0, "life0", 4)]
    (blow,) = find_blows(evidence([], *events))
    assert (blow.step, blow.missed_in, [each.group for each in blow.witnesses]) == (7, 6, [2, 1])


def test_what_is_no_death_of_its_own() -> None:
    missed = seen(5, 1, 6, 0)
    assert facts(*THREE, missed, met(6, 0, 7, 0, 1, 2)) == []  # it was cut off, and went on
    assert facts(*THREE, missed, event(4, EventKind.FINISHED, group=0, incarnation="life0", step=5)) == []
    assert facts(start(0, 0, "life0"), *THREE, kill(4, 0), missed) == [(4, "group", 0, None, 4)]
    # A kill explains the death of one life only.
    again = [start(6, 0, "new"), met(7, 0, 8, 0, 1, 2, life="new"), seen(9, 1, 9, 0)]
    assert [one[1:4] for one in facts(start(0, 0, "life0"), *THREE, kill(4, 0), missed, *again)] == [
        ("group", 0, None), ("unknown", 0, "new"),
    ]  # fmt: skip


def test_a_group_of_which_nothing_is_here_can_die() -> None:
    assert facts(met(1, 1, 4, 0, 1), seen(5, 1, 6, 0)) == [(5, "unknown", 0, None, 4)]
    assert facts(seen(5, 1, 6, 0)) == [(5, "unknown", 0, None, -1)]


def test_a_life_that_died_before_it_told_of_its_quorum_is_found() -> None:
    """The new life of group 0 is in quorum 8 as the others tell, and wrote nothing of it."""
    back = [start(6, 0, "new"), met(7, 1, 8, 0, 1, 2)]
    later = [seen(9, 1, 9, 0), start(10, 0, "newer")]
    assert facts(*THREE, seen(5, 1, 6, 0), *back, *later) == [
        (5, "unknown", 0, "life0", 4), (9, "unknown", 0, "new", 8),
    ]  # fmt: skip


def test_the_lighthouse_is_hit_and_does_not_die_as_a_group() -> None:
    (blow,) = find_blows(evidence([], kill(3, None, "lighthouse")))
    assert (blow.group, blow.is_death, blow.witnesses) == (None, False, ())


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), kills=st.integers(0, 5), keeps=st.booleans(), disasters=st.integers(0, 1))
def test_only_kills_are_found_where_all_deaths_are_kills(
    seed: int, kills: int, keeps: bool, disasters: int
) -> None:
    found = history(seed, kills=kills, keeps=keeps, disasters=disasters, groups=4)
    blows = find_blows(found)
    assert [blow.t for blow in blows if blow.witnesses] == []
    # Without a word of those who killed, what the others missed are the same lives, in the same quorums.
    outside = replace(found, events=tuple(each for each in found.events if each.kind not in OUTSIDE))
    killed = {(blow.group, blow.quorum_id) for blow in blows}
    missed = [(blow.group, blow.quorum_id) for blow in find_blows(outside)]
    assert len(set(missed)) == len(missed)
    assert set(missed) <= killed


def dies_at_100(skew_s: float) -> Evidence:
    """Groups 0 and 1 commit a step a second; group 1, with another clock, dies for good after step 99."""
    clock = {0: 0.0, 1: skew_s}
    lines = [line(3 + s + clock[g], g, s, 1) for s in range(100) for g in (0, 1)]
    alone: dict[str, Any] = {"participants": (0,), "rounds": ((0, 0), (1, 0))}
    lines += [line(5 + s, 0, s, 2, **alone) for s in range(100, 300)]
    events = [start(2 + clock[g], g, f"life{g}") for g in (0, 1)]
    events += [met(2 + clock[g], g, 1, 0, 1) for g in (0, 1)]
    events += [met(103.5, 0, 2, 0, step=100), seen(103.6, 0, 2, 1)]
    return evidence(lines, *sorted(events, key=lambda each: each.t))


@pytest.mark.parametrize("skew_s", [0.0, 0.2, 2.0, -2.0, 50.0, 150.0])
def test_a_death_is_seen_whatever_the_clocks_say(skew_s: float) -> None:
    found = dies_at_100(skew_s)
    (blow,) = find_blows(found)
    assert (blow.life, blow.quorum_id) == ((1, "life1"), 1)
    timeline = find_timeline(found)
    account = goodput(found, timeline)
    spent = account["by_group"]["1"]
    # After its last commit it did nothing else.
    assert account["by_kill"][0]["victim_s"] == pytest.approx(spent["ended_attempt"])
    assert spent["ended_attempt"] == pytest.approx(max(0.0, 1.6 - skew_s), abs=1e-6)
    assert spent["not_provisioned"] > 198.0 - abs(skew_s)
    assert spent["productive"] == pytest.approx(60.0, abs=1.0)
    assert figures.breadth_mean(found) == 1.0
    # From step 99 to step 100 group 0 waited 3 s, where a step takes 1 s.
    assert figures.survivor_stalls_s(found) == [pytest.approx(2.0)]
    row = last_signs(found)[1]
    assert row["ending"] == "seen_dead"
    said = str(row["said"]).removeprefix("seen dead by others at ").split(" s; ")[0]
    assert float(said) == pytest.approx(max(103.6 - min(2.0, 2.0 + skew_s), row["t"]), abs=0.06)


def comes_back(skew_s: float) -> Evidence:
    """Group 1 dies at 10 s and commits again at 20 s, by the clock of group 0."""
    lines = [line(9, 0, 0), line(9 + skew_s, 1, 0), line(11, 0, 1, 2, participants=(0,))]
    lines += [line(20, 0, 2, 3), line(20 + skew_s, 1, 2, 3, incarnation="new")]
    events = [met(1, 0, 1, 0, 1), met(10.1, 0, 2, 0), seen(10.1, 0, 2, 1), start(19 + skew_s, 1, "new")]
    return evidence(lines, *events)


@pytest.mark.parametrize("skew_s", [0.0, 30.0, -30.0])
def test_the_way_back_is_measured_by_one_clock(skew_s: float) -> None:
    found = comes_back(skew_s)
    assert figures.rejoins_s(found, find_eras(found)) == [pytest.approx(9.9)]
    report = build_report(found)
    assert (report["kills"], report["deaths"]) == (0, 1)
    assert report["rejoin_s"] == {"p50": 9.9, "max": 9.9}
    (row,) = report["survival"]
    assert (row["target"], row["group"], row["rejoin_s"]) == ("unknown", 1, 9.9)
    assert report["measures"]["discarded_steps_per_kill"] == 0.0
    assert "kills survived        0\ndeaths seen           1\n" in format_report(report)


def test_the_report_tells_deaths_beside_kills() -> None:
    """Group 1 is killed, and later dies by itself."""
    found = comes_back(0.0)
    again = replace(found, events=(start(1, 1, "life1"), *found.events, kill(9.5, 1), seen(30, 0, 4, 1)))
    report = build_report(again)
    assert (report["kills"], report["deaths"]) == (1, 2)
    assert "deaths seen           2, 1 not by a kill\n" in format_report(report)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), kills=st.integers(1, 4))
def test_what_deaths_cost_is_no_more_than_what_was_lost(seed: int, kills: int) -> None:
    found = timed(history(seed, kills=kills, keeps=True, groups=4), seed, outside=True)
    account = goodput(found, find_timeline(found))
    for cause in (Cause.ENDED_ATTEMPT, Cause.RECONFIGURING, Cause.RESTARTING):
        told = sum(row["lost_s_by_cause"].get(cause, 0.0) for row in account["by_kill"])
        assert told <= account["lost_s_by_cause"][cause] + 0.01
    ended = sum(row["lost_s_by_cause"].get(Cause.ENDED_ATTEMPT, 0.0) for row in account["by_kill"])
    assert not account["by_kill"] or ended > 0
