"""A row for each kill: who waited how long, when the victim was back, what was computed again."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_history import history
from test_train_report import event, evidence, kill, line, start

from replica.ledger import EventKind
from train.evidence import figures
from train.evidence.eras import find_eras
from train.evidence.files import Evidence
from train.evidence.goodput import by_kill
from train.evidence.survival import survival
from train.evidence.timeline import find_timeline


def rows(found: Evidence) -> list[dict[str, Any]]:
    eras = find_eras(found)
    return survival(
        found,
        eras,
        costs=by_kill(found, find_timeline(found)),
        stalls_s=figures.survivor_stalls_s(found),
        rejoins_s=figures.rejoins_s(found, eras),
    )


def round_done(t: float, quorum_id: int, number: int, step: int = 1) -> Any:
    values = {"group": 1, "incarnation": "life1", "input_xxh64": None}
    return event(t, EventKind.ROUND_DONE, step=step, quorum_id=quorum_id, round=number, **values)


def test_one_kill_from_the_blow_to_the_return() -> None:
    lines = [
        line(10, 0, 0),
        line(10, 1, 0),
        line(14.5, 1, 1, 2),
        line(20, 0, 2, 3, incarnation="new"),
        line(20, 1, 2, 3),
    ]
    events = [
        start(1, 0, "life0"), start(1, 1, "life1"), round_done(10.2, 1, 0), round_done(10.3, 1, 1),
        kill(10.5, 0), round_done(14, 2, 0), start(18, 0, "new"),
    ]  # fmt: skip
    (row,) = rows(evidence(lines, *events))
    assert (row["t"], row["target"], row["group"], row["step"]) == (9.5, "group", 0, 0)
    assert (row["stall_s"], row["rejoin_s"], row["rounds_recomputed"]) == (3.0, 9.5, 1)
    assert row["lost_s"] > 0


def test_rounds_count_for_the_last_kill_before_them() -> None:
    lines = [line(10, 0, 0), line(10, 1, 0), line(30, 1, 1, 3)]
    events = [
        round_done(11, 1, 0), kill(12, 0), round_done(13, 2, 0), kill(14, 0),
        round_done(15, 3, 0), round_done(16, 3, 1),
        round_done(17, 2, 9, step=7), round_done(18, 3, 9, step=7),
    ]  # fmt: skip
    # Step 7 was never committed: its rounds count for nobody.
    assert [row["rounds_recomputed"] for row in rows(evidence(lines, *events))] == [1, 1]


def test_what_never_came_is_none() -> None:
    lines = [line(10, 0, 0), line(10, 1, 0)]
    dead, lighthouse = rows(evidence(lines, kill(11, 0), kill(12, None, "lighthouse")))
    assert (dead["stall_s"], dead["rejoin_s"]) == (None, None)
    assert (lighthouse["target"], lighthouse["stall_s"], lighthouse["rejoin_s"]) == ("lighthouse", None, None)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), kills=st.integers(0, 5), keeps=st.booleans(), disasters=st.integers(0, 2))
def test_rows_add_up_to_the_figures_of_the_run(seed: int, kills: int, keeps: bool, disasters: int) -> None:
    found = history(seed, kills=kills, keeps=keeps, disasters=disasters)
    eras, made = find_eras(found), rows(found)
    assert len(made) == len(found.of(EventKind.KILL))
    assert all(before["t"] <= after["t"] for before, after in pairwise(made))
    deaths = [row for row in made if row["target"] != "lighthouse"]
    for name, values in (
        ("stall_s", figures.survivor_stalls_s(found)),
        ("rejoin_s", figures.rejoins_s(found, eras)),
    ):
        assert [row[name] for row in deaths] == [
            value and pytest.approx(value, abs=0.001) for value in values
        ]
    again = sum(row["rounds_recomputed"] for row in made)
    assert again == figures.rounds_recomputed(found, eras)
