"""The last of each group: how it ended, how far it had come, and what it was doing, from files alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_history import history
from test_train_report import event, evidence, kill, line, start

from replica.ledger import EventKind, Outcome, Reason
from train.evidence.files import Event, Evidence
from train.evidence.last_signs import last_signs

JOB = {"groups": 2, "ranks": 1, "rounds": 2, "mode": "exact", "seed": 0, "steps": 9}
LIFE = {"group": 1, "incarnation": "life1"}
JOB_STARTED = event(0, EventKind.JOB_STARTED, **JOB)
LAUNCHED = event(0.5, EventKind.GROUP_LAUNCHED, group=1)
STARTED = start(1, 1, "life1")
QUORUM = event(9, EventKind.QUORUM, **LIFE, step=4, quorum_id=3, participants=[0, 1])


EXITED = event(20.5, EventKind.GROUP_EXITED, group=1, code=-9)
SEEN = event(20.2, EventKind.DEATH_SEEN, group=0, incarnation="life0", dead=[1], quorum_id=4)
PAUSED = event(20, EventKind.GROUP_PAUSED, group=1)
UNTOLD = "no word of an end: it still runs, or died with whoever would have told"


def of_group_1(*events: Event, lines: Any = ()) -> dict[str, Any]:
    return last_signs(evidence(list(lines), JOB_STARTED, *events))[1]


def round_done(t: float, number: int) -> Event:
    return event(t, EventKind.ROUND_DONE, **LIFE, step=4, quorum_id=3, round=number, input_xxh64=None)


def test_killed_with_whoever_would_have_told() -> None:
    lines = [line(8, 1, 3)]
    row = of_group_1(LAUNCHED, STARTED, QUORUM, round_done(9.5, 1), round_done(9.7, 0), lines=lines)
    assert (row["ending"], row["code"], row["t"], row["steps"]) == ("untold", None, 9.7, 4)
    assert row["said"] == (
        f"{UNTOLD}; it committed step 3 at 8.0 s; had finished rounds 0, 1 of step 4; nothing after 9.7 s"
    )


def test_what_it_was_doing_last() -> None:
    def said(*events: Event, lines: Any = ()) -> str:
        return str(of_group_1(LAUNCHED, STARTED, *events, lines=lines)["said"]).split("; ", 1)[1]

    assert said() == "it had not begun any step; nothing after 1.0 s"
    assert said(QUORUM) == "began step 4 in quorum 3; nothing after 9.0 s"
    assert said(round_done(9.5, 1)) == "had finished round 1 of step 4; nothing after 9.5 s"
    tried = line(10, 1, 4, outcome=Outcome.RETRIED, reason=Reason.ATTEMPT_OVER)
    assert said(QUORUM, round_done(9.5, 1), lines=[tried]) == (
        "gave up step 4 (attempt over) at 10.0 s; nothing after 10.0 s"
    )


@pytest.mark.parametrize(
    ("ends", "ending", "said"),
    [
        ([event(20, EventKind.FINISHED, **LIFE, step=9)], "finished", "finished at 20.0 s"),
        ([event(20, EventKind.FINISHED, **LIFE, step=4)], "left", "left at step 4, at 20.0 s; began step 4"),
        ([kill(20, 1)], "killed", "killed at 20.0 s; "),
        ([kill(20, 1), EXITED], "killed", "killed at 20.0 s; "),
        ([kill(20, 1), SEEN], "killed", "killed at 20.0 s; "),
        ([SEEN, EXITED], "exited", "ended with code -9 at 20.5 s; "),
        ([event(20, EventKind.GROUP_EXITED, group=1, code=3)], "exited", "ended with code 3 at 20.0 s; "),
        ([event(20, EventKind.GROUP_EVICTED, group=1, step=4)], "evicted", "counted out at 20.0 s; "),
        ([PAUSED], "paused", "paused for good at 20.0 s"),
        ([PAUSED, event(21, EventKind.GROUP_RESUMED, group=1)], "untold", f"{UNTOLD}; began"),
        ([SEEN], "seen_dead", "seen dead by others at 20.2 s; "),
        ([event(20, EventKind.DEATH_SEEN, **LIFE, dead=[0], quorum_id=4)], "untold", ""),
        ([kill(20, 1), event(21, EventKind.GROUP_LAUNCHED, group=1)], "starting", "no word since its launch"),
        ([kill(20, 1), start(21, 1, "new")], "untold", ""),
        ([kill(20, None, "lighthouse")], "untold", ""),
    ],
)  # fmt: skip
def test_each_way_to_end(ends: list[Event], ending: str, said: str) -> None:
    row = of_group_1(LAUNCHED, STARTED, QUORUM, *ends)
    assert row["ending"] == ending
    assert row["said"].startswith(said)


def test_without_a_goal_the_furthest_group_tells_who_left_before() -> None:
    finished = [
        event(20, EventKind.FINISHED, group=group, incarnation=f"life{group}", step=4) for group in (0, 1)
    ]
    lines = [line(18, 0, 2), line(18, 1, 2), line(19, 0, 3), line(19, 1, 3)]
    assert [row["ending"] for row in last_signs(evidence(lines, *finished))] == ["finished", "finished"]
    assert [row["ending"] for row in last_signs(evidence(lines[:-1], *finished[1:]))] == [
        "untold",
        "finished",
    ]
    drained = event(18.5, EventKind.FINISHED, group=1, incarnation="life1", step=3)
    rows = last_signs(evidence(lines[:-1], drained, finished[0]))
    assert [row["ending"] for row in rows] == ["finished", "left"]
    assert rows[1]["said"] == "left at step 3, at 0.5 s; it committed step 2 at 0.0 s"


def test_a_group_that_comes_when_all_is_done_has_not_left() -> None:
    late = [start(30, 1, "late"), event(31, EventKind.FINISHED, group=1, incarnation="late", step=0)]
    assert of_group_1(STARTED, QUORUM, *late)["ending"] == "finished"


def test_groups_that_never_came_are_told_of() -> None:
    row = of_group_1()
    assert row.pop("said") == "never launched"
    assert row == {"group": 1, "ending": "never_launched", "code": None, "t": None, "steps": None}


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 1000), share=st.floats(0.05, 1.0))
def test_a_history_cut_off_anywhere_is_explained(seed: int, share: float) -> None:
    """All is killed at one moment: what was written until then is all that there is."""
    whole = history(seed)
    times = sorted([sign.t for sign in (*whole.events, *whole.lines)])
    end_t = times[int((len(times) - 1) * share)]
    ledgers = {group: tuple(one for one in lines if one.t <= end_t) for group, lines in whole.ledgers.items()}
    events = tuple(each for each in whole.events if each.t <= end_t)
    cut = Evidence(out=whole.out, ledgers=ledgers, events=events)
    rows = last_signs(cut)
    assert [row["group"] for row in rows] == sorted(ledgers)
    for row in rows:
        own = ledgers[row["group"]]
        steps = [one.step + 1 for one in own if one.outcome is Outcome.COMMITTED]
        assert row["steps"] == (steps[-1] if steps else None)
        assert row["said"]
        signs = [sign.t for sign in (*own, *events) if sign.group == row["group"]]
        if row["ending"] != "seen_dead":
            assert row["t"] == (pytest.approx(max(signs) - times[0], abs=0.001) if signs else None)
