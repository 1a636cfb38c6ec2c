"""The account of a job's time: over several lives of a group, and whatever clients say."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.accounts import MAX_CAUSES, Accounts, goodput_ratio
from lighthouse.model import parse_replica_id


def told(*reports: tuple[str, dict[str, float], float], max_groups: int = 8) -> Accounts:
    accounts = Accounts(max_groups=max_groups)
    for name, seconds, now_s in reports:
        accounts.report(parse_replica_id(f"job/{name}"), seconds, now_s)
    return accounts


def test_the_latest_report_of_a_life_counts() -> None:
    accounts = told(("0:a", {"productive": 1.0}, 10.0), ("0:a", {"productive": 3.0, "reduce": 1.0}, 13.0))
    assert accounts.by_group() == {0: {"productive": 3.0, "reduce": 1.0}}
    assert goodput_ratio(accounts.total()) == 0.75


def test_a_later_life_is_added_and_the_time_between_was_spent_dead() -> None:
    accounts = told(("0:a", {"productive": 8.0}, 10.0), ("0:b", {"restarting": 3.0, "quorum": 1.0}, 20.0))
    assert accounts.of(0) == {"productive": 8.0, "restarting": 3.0, "quorum": 1.0, "detection": 6.0}


def test_a_life_that_began_before_the_last_report_of_the_earlier_one_leaves_no_gap() -> None:
    accounts = told(("0:a", {"productive": 8.0}, 10.0), ("0:b", {"restarting": 5.0}, 12.0))
    assert accounts.of(0) == {"productive": 8.0, "restarting": 5.0, "detection": 0.0}


def test_a_group_that_left_was_away_and_not_dead() -> None:
    accounts = told(("0:a", {"productive": 8.0}, 10.0))
    accounts.leave(parse_replica_id("job/0:z"))  # some earlier life of it: says nothing of this one
    accounts.leave(parse_replica_id("job/0:a"))
    accounts.report(parse_replica_id("job/0:b"), {"restarting": 2.0}, 30.0)
    accounts.report(parse_replica_id("job/0:c"), {"restarting": 2.0}, 40.0)
    assert accounts.of(0) == {
        "productive": 8.0,
        "restarting": 4.0,
        "not_provisioned": 18.0,
        "detection": 8.0,
    }


def test_groups_are_kept_apart_and_added_up() -> None:
    accounts = told(("2:a", {"productive": 1.0}, 5.0), ("10:a", {"productive": 2.0, "spare": 3.0}, 5.0))
    assert list(accounts.by_group()) == [2, 10]
    assert accounts.total() == {"productive": 3.0, "spare": 3.0}
    assert accounts.of(7) == {}
    assert accounts.of("a torchft replica") == {}


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf, 1e12])
def test_numbers_that_cannot_be_are_passed_over(value: float) -> None:
    accounts = told(("0:a", {"productive": 1.0, "save": value}, 5.0), ("1:a", {"save": value}, 5.0))
    assert accounts.by_group() == {0: {"productive": 1.0}}


@pytest.mark.parametrize("cause", ["", "Productive", "a b", 'x"} 1', "a" * 33, "1st", "ü"])
def test_names_that_cannot_be_are_passed_over(cause: str) -> None:
    assert told(("0:a", {cause: 1.0, "save": 2.0}, 5.0)).of(0) == {"save": 2.0}


def test_what_falls_does_not() -> None:
    accounts = told(("0:a", {"productive": 5.0}, 10.0), ("0:a", {"productive": 2.0, "save": 1.0}, 11.0))
    assert accounts.of(0) == {"productive": 5.0, "save": 1.0}


def test_no_time_has_no_ratio() -> None:
    assert goodput_ratio({}) is None
    assert goodput_ratio({"productive": 0.0}) is None
    assert goodput_ratio({"reduce": 2.0}) == 0.0


def test_memory_is_bounded_whatever_is_invented() -> None:
    accounts = Accounts(max_groups=4)
    for life in range(100):
        causes = {f"c_{'abcdefghij'[digit]}{'abcdefghij'[life % 10]}": 1.0 for digit in range(10)}
        extra = {f"x{chr(97 + n % 26)}{chr(97 + life % 26)}{chr(97 + n // 26)}": 1.0 for n in range(60)}
        accounts.report(parse_replica_id(f"job/{life % 10}:{life}"), causes | extra, float(life))
    assert len(accounts.by_group()) == 4
    assert all(len(seconds) <= 2 * MAX_CAUSES for seconds in accounts.by_group().values())
    assert len(accounts.total()) <= MAX_CAUSES


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.dictionaries(st.sampled_from(["productive", "reduce", "save"]), st.floats(0, 100)),
            st.floats(0, 50),
        ),
        max_size=20,
    )
)
def test_no_cause_ever_falls(reports: list[tuple[str, dict[str, float], float]]) -> None:
    accounts, now_s = Accounts(max_groups=8), 0.0
    before: dict[str, float] = {}
    for life, seconds, later_s in reports:
        now_s += later_s
        accounts.report(parse_replica_id(f"job/0:{life}"), seconds, now_s)
        after = accounts.of(0)
        assert all(after[cause] >= value - 1e-9 for cause, value in before.items())
        before = after
