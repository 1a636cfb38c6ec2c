"""The words of the status: which rule blocks, who is missing, what was lost, which rank is silent."""

import pytest
from test_lighthouse_status import SCENARIO, document

from lighthouse.status_words import (
    COLUMNS,
    ago,
    cells,
    deaths_line,
    expected_line,
    forming_line,
    goodput_line,
    lines,
    losses_line,
    quorum_line,
    remarks,
)


def test_the_rule_that_blocks_is_named_with_its_numbers() -> None:
    job = document()
    assert quorum_line(job) == "quorum 1 at step 4: group 0, group 1"
    assert forming_line(job) == (
        "next quorum: waiting for group 1: in the last quorum and not asking yet, 1.0 s of 60.0 s "
        "(rule member_not_asking; asking: group 0)"
    )
    over = {**job, "quorum": {**job["quorum"], "attempt_over": True}}
    assert quorum_line(over).endswith("group 1; its attempt was ended early")
    assert forming_line(document("0.0 attach 0a\n")) == "next quorum: nobody asks for one"
    assert forming_line({**job, "finished_step": 9}) == "finished at step 9"


def test_what_was_lost_since_the_start() -> None:
    assert losses_line(document()) == ""
    job = document(SCENARIO + "1.5 cut 1a\n")
    assert (job["attempts_over"], job["gone"]["stream_broke"]) == (1, 1)
    assert losses_line(job) == "incarnations that ended: 1 stream broke; attempts ended early: 1"
    assert losses_line(job) in lines(job)


def test_goodput_is_told_once_it_is_known() -> None:
    job = document()
    assert goodput_line(job) == goodput_line({**job, "goodput": None}) == ""
    lost = {"restarting": 61.2, "quorum": 0.1, "ended_attempt": 3.0}
    told = {**job, "goodput": {"ratio": 0.918, "lost_s_by_cause": lost}}
    assert goodput_line(told) == "goodput 91.8%, lost most to restarting 61 s, ended attempt 3 s"
    assert goodput_line(told) in lines(told)
    row = dict(zip(COLUMNS, cells({**job["groups"][0], "goodput": {"ratio": 0.5}}), strict=True))
    assert row["goodput"] == "50.0%"


def test_expected_groups_are_counted() -> None:
    job = document()
    assert expected_line(job) == ""
    assert expected_line({**job, "expected_groups": 4}) == "3 of 4 expected groups are seen here"
    missing = {**job, "expected_groups": 4, "expected_missing": ["group 3"]}
    assert expected_line(missing) == "3 of 4 expected groups are seen here; missing: group 3"
    assert "missing" not in expected_line({**missing, "finished_step": 9})


def test_the_dead_of_a_quorum_are_named() -> None:
    assert quorum_line(document()) == "quorum 1 at step 4: group 0, group 1"
    trains = SCENARIO.replace("1.0 ask 0a 5\n", "")
    one = document(trains + "1.5 cut 1a\n")
    assert quorum_line(one).startswith("quorum 1 at step 4: group 0, group 1, of which group 1 is gone")
    both = document(trains + "1.5 cut 1a\n1.6 cut 0a\n")
    assert ", of which group 0 and group 1 are gone" in quorum_line(both)
    assert quorum_line(document("0.0 attach 0a\n")) == "there has been no quorum yet"


def test_the_last_deaths_are_listed_with_what_they_cost() -> None:
    death = {"group": 1, "step": 40, "cause": "stream_broke", "ago_s": 9.0, "lost_s": 0.0, "back_s": None}
    back = {**death, "group": 2, "lost_s": 12.34, "back_s": 10.0}
    job = {**document(), "deaths": [{**back, "step": 1}, {**back, "step": 2}, back, death]}
    assert deaths_line(job) == (
        "last deaths: group 1 at step 40 (stream broke), 9.0 s ago, not back yet; "
        "group 2 at step 40 (stream broke), back after 10.0 s, cost all groups 12.3 s; "
        "group 2 at step 2 (stream broke), back after 10.0 s, cost all groups 12.3 s"
    )
    assert deaths_line(job) in lines(job)
    assert deaths_line(document()) == ""


def test_row_of_a_group() -> None:
    job = document(SCENARIO + "1.5 cut 1a\n")
    rows = [dict(zip(COLUMNS, cells(group), strict=True)) for group in job["groups"]]
    assert rows[0] | {"remarks": ""} == {
        "group": "0", "state": "training", "step": "5", "phase": "quorum", "last pulse": "1.0 s ago",
        "incarnation": "1", "goodput": "-", "remarks": "",
    }  # fmt: skip
    assert (rows[1]["state"], rows[1]["last pulse"]) == ("dead", "0.5 s ago")


def test_ranks_that_are_lost_or_silent_are_named() -> None:
    group = document()["groups"][0]
    assert remarks(group) == ""
    assert remarks({**group, "broken_ranks": [1]}) == "lost the stream of rank 1"
    assert remarks({**group, "broken_ranks": [1, 3]}) == "lost the stream of ranks 1, 3"
    watched = SCENARIO + "1.1 watch 0a 1\n1.2 pulse 0a 1\n"
    assert document(watched)["groups"][0]["rank_pulse_s"] == {"1": 0.8}
    assert remarks(document(watched, now_s=4.0)["groups"][0]) == ""
    assert remarks(document(watched, now_s=5.4)["groups"][0]) == "rank 1 says nothing for 4.2 s"


@pytest.mark.parametrize(
    ("age_s", "text"), [(3.21, "3.2 s ago"), (61, "1 min ago"), (7300, "2.0 h ago"), (90_000, "25.0 h ago")]
)
def test_ages_in_the_unit_that_reads_best(age_s: float, text: str) -> None:
    assert ago(age_s) == text
