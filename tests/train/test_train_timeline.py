"""The timeline: no gap, no overlap, and each rule of what a second was spent on."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_history import History

from replica.goodput import Cause, Fate
from replica.ledger import EventKind, LedgerLine, Outcome, PhaseSeconds
from train.evidence.eras import find_eras
from train.evidence.files import Event, Evidence
from train.evidence.timeline import Interval, fates, find_timeline

JOB = {"groups": 1, "ranks": 1, "rounds": 2, "mode": "exact", "seed": 0, "steps": 9}


def event(t: float, kind: EventKind, **values: Any) -> Event:
    values = {"group": 0, "incarnation": "a", **values}
    return Event(t=t, kind=kind, values={name: value for name, value in values.items() if value is not None})


def job(t: float, **values: Any) -> Event:
    return Event(t=t, kind=EventKind.JOB_STARTED, values={**JOB, **values})


def launched(t: float) -> Event:
    return event(t, EventKind.GROUP_LAUNCHED, incarnation=None)


def exited(t: float, code: int = -9) -> Event:
    return event(t, EventKind.GROUP_EXITED, incarnation=None, code=code)


def kill(t: float, target: str = "group") -> Event:
    return event(t, EventKind.KILL, incarnation=None, target=target, rank=None, step=0)


def up(t: float, life: str = "a", **values: Any) -> Event:
    return event(t, EventKind.GROUP_STARTED, incarnation=life, **values)


def end(t: float) -> Event:
    return Event(t=t, kind=EventKind.LIGHTHOUSE_DOWN, values={})


def line(t: float, step: int, life: str = "a", **values: Any) -> LedgerLine:
    """An attempt of a second: 0.1 s for a quorum, 0.5 s of rounds, 0.3 s for the sum, 0.1 s to commit."""
    whole: dict[str, Any] = {
        "outcome": Outcome.COMMITTED, "participants": (0,), "rounds": ((0, 0), (1, 0)), "quorum_id": 1,
        "seconds": PhaseSeconds(quorum=0.1, compute=0.5, reduce=0.3, commit=0.1, total=1.0),
    }  # fmt: skip
    return LedgerLine(t=t, group=0, incarnation=life, step=step, **{**whole, **values})


RETRIED = {"outcome": Outcome.RETRIED, "rounds": ((0, 0),)}


def evidence(*signs: Event | LedgerLine) -> Evidence:
    lines = tuple(sign for sign in signs if isinstance(sign, LedgerLine))
    events = tuple(sign for sign in signs if isinstance(sign, Event))
    return Evidence(out=Path("run"), ledgers={0: lines} if lines else {}, events=events)


def told(*signs: Event | LedgerLine) -> list[tuple[str, float]]:
    """What group 0 did, in order: cause, and until when."""
    given_ = evidence(*signs)
    found: list[tuple[str, float]] = []
    for each in find_timeline(given_).groups[0]:
        if found and found[-1][0] == each.cause:
            found.pop()
        found.append((str(each.cause), pytest.approx(each.end_t)))
    return found


def test_a_life_from_its_launch_to_its_goodbye() -> None:
    finished = event(9, EventKind.FINISHED, step=2, save_s=0.5)
    signs = [job(0), launched(1), up(4), line(6, 0), line(7.5, 1), finished, exited(9.5, 0), end(10)]
    assert told(*signs) == [
        ("not_provisioned", 1), ("restarting", 4), ("quorum", 5.1), ("productive", 5.6), ("reduce", 5.9),
        ("productive", 6.0), ("quorum", 6.6), ("productive", 7.1), ("reduce", 7.4), ("productive", 7.5),
        ("quorum", 8.5), ("save", 9), ("not_provisioned", 10),
    ]  # fmt: skip


def test_what_an_attempt_and_the_time_before_it_went_into() -> None:
    seconds = PhaseSeconds(
        quorum=0.1, configure=0.1, heal=0.1, compute=0.3, reduce=0.1, vote=0.1, commit=0.1, total=1.0,
        save=0.2, script=0.5,
    )  # fmt: skip
    assert told(end(0), line(1, 0), line(3, 1, seconds=seconds))[3:] == [
        ("productive", 1.0),
        ("save", 1.2), ("productive", 1.7),
        # What the line does not tell of is waiting: 0.3 s before it, 0.1 s in it.
        ("quorum", 2.2), ("reconfiguring", 2.3), ("healing", 2.4), ("productive", 2.7), ("reduce", 2.9),
        ("productive", 3.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "causes"),
    [
        ({}, ["quorum", "productive", "reduce", "productive"]),
        ({"healed_from": (1,)}, ["quorum", "healing"]),
        ({"rounds": ((0, 1), (1, 1))}, ["quorum", "spare"]),
        ({"outcome": Outcome.DISCARDED}, ["quorum", "ended_attempt"]),
        ({"outcome": Outcome.RETRIED}, ["quorum", "ended_attempt"]),
    ],
)
def test_the_fate_of_an_attempt_decides(values: dict[str, Any], causes: list[str]) -> None:
    assert [cause for cause, _ in told(line(1, 0, **values), end(0))] == causes


def test_rounds_that_are_kept_until_a_commit_are_productive() -> None:
    chain = [line(1, 0, **RETRIED), line(2, 0, **RETRIED), line(3, 0)]
    assert fates(chain, find_eras(evidence(*chain))) == [Fate.KEPT, Fate.KEPT, Fate.COMMITTED]
    lost: list[list[LedgerLine]] = [
        [line(1, 0, **RETRIED)],
        [line(1, 0, **RETRIED), line(2, 1)],
        [line(1, 0, **RETRIED), line(2, 0, "b")],
        [line(1, 0, **RETRIED), line(2, 0, outcome=Outcome.DISCARDED), line(3, 0)],
        [line(1, 0, **RETRIED), line(2, 0, healed_from=(1,))],
    ]
    for lines in lost:
        assert fates(lines, find_eras(evidence(*lines)))[0] is Fate.LOST
    assert told(end(0), *chain)[:3] == [("quorum", 0.1), ("productive", 0.6), ("ended_attempt", 1.0)]


def test_a_killed_group_is_detected_launched_and_started_again() -> None:
    signs = [job(0), launched(0), up(1), line(2, 0), kill(2.7), exited(2.8), launched(5), up(8, "b")]
    assert told(*signs, line(9, 1, "b"))[-7:] == [
        # The rounds of the attempt that died with it are lost.
        ("ended_attempt", 2.7), ("detection", 5), ("restarting", 8), ("quorum", 8.1), ("productive", 8.6),
        ("reduce", 8.9), ("productive", 9.0),
    ]  # fmt: skip


def test_an_attempt_that_outlived_the_kill_of_a_sibling_counts_up_to_the_kill() -> None:
    (*_, last, dead) = told(job(0), up(1), line(2, 0), kill(2.9, "rank"), line(3, 1), exited(4))
    assert (last, dead) == (("reduce", 2.9), ("detection", 4))


def test_a_group_that_is_killed_while_it_starts_was_starting_until_then() -> None:
    assert told(job(0), launched(1), kill(2), exited(2.5), launched(4), up(6, "b"), end(7)) == [
        ("not_provisioned", 1), ("restarting", 2), ("detection", 4), ("restarting", 6), ("quorum", 7),
    ]  # fmt: skip


def test_a_group_that_stays_down_is_gone_once_its_launcher_is() -> None:
    assert told(job(0), up(0), line(1, 0), kill(1.5), exited(2), end(9))[-3:] == [
        ("ended_attempt", 1.5), ("detection", 2), ("not_provisioned", 9),
    ]  # fmt: skip


def test_a_group_that_dies_before_its_first_quorum_had_waited_for_it() -> None:
    assert told(job(0), up(0), kill(1))[-1] == ("quorum", 1)
    quorum = event(0.4, EventKind.QUORUM, step=0, quorum_id=1, participants=[0])
    assert told(job(0), up(0), quorum, kill(1)) == [("quorum", 0.4), ("ended_attempt", 1)]


def test_without_a_launch_on_record_the_process_tells_its_age() -> None:
    assert told(end(0), up(4, age_s=3.0), line(6, 0), up(9, "b", age_s=2.0), line(10, 1, "b"))[:3] == [
        ("not_provisioned", 1), ("restarting", 4), ("quorum", 5.1),
    ]  # fmt: skip
    assert ("detection", 7) in told(end(0), up(4), line(6, 0), up(9, "b", age_s=2.0), line(10, 1, "b"))


def test_a_restart_inside_a_launch_is_detected_too() -> None:
    signs = [job(0), launched(0), up(1), line(2, 0), kill(2, "rank"), up(5, "b", age_s=2.0), end(6)]
    assert told(*signs)[-3:] == [
        ("detection", 3), ("restarting", 5), ("quorum", 6),
    ]  # fmt: skip


def test_reading_a_save_is_healing() -> None:
    read = event(3, EventKind.BACKSTOP_READ, step=2, save="a", bytes=1, seconds=0.5, digest=None)
    assert told(job(0), up(1), read, line(5, 2))[:4] == [
        ("not_provisioned", 1), ("quorum", 2.5), ("healing", 3), ("quorum", 4.1),
    ]  # fmt: skip


def test_steps_that_a_disaster_took_back() -> None:
    read = event(
        5, EventKind.BACKSTOP_READ, incarnation="b", step=1, save="a", bytes=1, seconds=0.5, digest=None
    )
    signs = [job(0), up(0), line(1, 0), line(2, 1), kill(2), up(4, "b"), read, line(6, 1, "b", quorum_id=5)]
    assert [cause for cause, _ in told(*signs)[:6]] == [
        "quorum", "productive", "reduce", "productive", "quorum", "restored_over",
    ]  # fmt: skip


def test_a_pause_after_which_nothing_came_is_the_end_of_a_life() -> None:
    pause = event(2, EventKind.GROUP_PAUSED, incarnation=None)
    signs = [job(0), up(0), line(1, 0), pause, exited(8, 3), launched(9), up(10, "b")]
    assert told(*signs)[-2:] == [("detection", 9), ("restarting", 10)]
    assert ("ended_attempt", 2) in told(*signs)
    resumed = line(3, 1, seconds=PhaseSeconds(quorum=0.1, compute=1.8, commit=0.1, total=2.0))
    assert told(job(0), up(0), line(1, 0), pause, resumed)[-2:] == [("quorum", 1.1), ("productive", 3)]


def test_a_death_is_what_the_others_say_where_nobody_ran_the_group() -> None:
    seen = event(4, EventKind.DEATH_SEEN, group=1, incarnation="x", dead=[0], quorum_id=2)
    assert told(up(0), line(1, 0), seen, end(9))[-2:] == [("ended_attempt", 4), ("not_provisioned", 9)]
    # It was only cut off: it went on.
    on = line(9, 1, quorum_id=3)
    assert "ended_attempt" not in [cause for cause, _ in told(up(0), line(1, 0), seen, on)]


def test_what_no_line_tells_of_is_counted() -> None:
    short = PhaseSeconds(compute=0.4, save=0.2, script=0.1, total=0.5)
    found = evidence(job(0), up(0), line(3, 0), line(5, 1), line(6, 2, seconds=short), kill(9))
    # Before the attempt of step 1 a second, before that of step 2 0.2 s, and in it 0.1 s.
    assert find_timeline(found).untold_s == pytest.approx(1.3)


def test_a_cluster_that_died_as_a_whole_left_its_groups_dead_at_their_last_sign() -> None:
    signs = [job(0), up(0), line(1, 0), line(2, 1), job(10), launched(11), up(12, "b"), end(13)]
    assert told(*signs)[-3:] == [("detection", 11), ("restarting", 12), ("quorum", 13)]
    assert ("productive", 2) in told(*signs)


def test_groups_count_while_their_cluster_has_them() -> None:
    found = evidence(job(0, groups=3), launched(1), job(6, groups=1), end(10))
    timeline = find_timeline(found)
    assert {group: sum(each.seconds for each in own) for group, own in timeline.groups.items()} == {
        0: 10.0, 1: 6.0, 2: 6.0,
    }  # fmt: skip


def test_a_part_of_a_timeline_is_cut_to_size() -> None:
    found = evidence(job(0), launched(1), up(4), end(6))
    part = list(find_timeline(found).of(0, 2, 5))
    assert [(each.begin_t, each.end_t, each.cause) for each in part] == [
        (2, 4, Cause.RESTARTING), (4, 5, Cause.QUORUM),
    ]  # fmt: skip
    assert list(find_timeline(found).of(7, 2, 5)) == []


@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from(
        [
            {},
            {"keeps": True},
            {"disasters": 1, "mode": "exact"},
            {"disasters": 2, "mode": "exact", "keeps": True},
        ]
    ),
)
def test_a_timeline_has_no_gap_and_no_overlap(seed: int, shape: dict[str, Any]) -> None:
    found = History(seed, **shape).evidence()
    timeline = find_timeline(found)
    assert sorted(timeline.groups) == [0, 1, 2]
    for intervals in timeline.groups.values():
        assert (intervals[0].begin_t, intervals[-1].end_t) == (timeline.begin_t, timeline.end_t)
        assert all(each.seconds > 0 for each in intervals)
        assert all(one.end_t == other.begin_t for one, other in pairwise(intervals))
        assert all(_differ(one, other) for one, other in pairwise(intervals))
    assert timeline.overlap_s == pytest.approx(0.0, abs=1e-6)


def _differ(one: Interval, other: Interval) -> bool:
    return (one.cause, one.step) != (other.cause, other.step)
