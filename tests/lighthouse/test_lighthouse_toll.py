"""The toll: what a death costs the group itself and the others, until it is productive again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.toll import OTHERS_LOSE, VICTIM_LOSES, Toll


def test_a_death_costs_the_victim_its_way_back_and_the_others_their_attempt() -> None:
    toll = Toll(max_groups=8)
    toll.told(0, {"productive": 50.0, "ended_attempt": 1.0}, 99.5)
    toll.died(1, 40, "stream_broke", {"productive": 50.0, "restarting": 6.0}, 100.0)
    toll.told(0, {"productive": 51.0, "ended_attempt": 2.5, "quorum": 0.5}, 101.0)
    back = {"productive": 50.0, "restarting": 12.0, "detection": 1.0, "healing": 2.0}
    toll.told(1, back, 108.0)
    (death,) = toll.recent
    assert death.back_s is None
    toll.told(1, {**back, "productive": 52.0}, 111.0)
    assert (death.group, death.step, death.cause, death.back_s) == (1, 40, "stream_broke", 11.0)
    assert (death.victim_s, death.others_s, death.lost_s) == (9.0, 2.0, 11.0)
    assert toll.by_group() == {1: 11.0}
    toll.told(0, {"productive": 60.0, "ended_attempt": 9.0}, 120.0)
    assert toll.by_group() == {1: 11.0}, "what comes later has another cause"


def test_what_the_others_lose_is_shared_between_those_that_are_away() -> None:
    toll = Toll(max_groups=8)
    toll.told(0, {"productive": 5.0}, 9.0)
    for group in (1, 2):
        toll.died(group, 7, "silent", {"productive": 5.0}, 10.0)
    toll.told(0, {"productive": 5.0, "ended_attempt": 3.0}, 11.0)
    assert toll.by_group() == {1: 1.5, 2: 1.5}


def test_one_that_dies_again_on_its_way_back_has_one_death() -> None:
    toll = Toll(max_groups=8)
    toll.died(1, 7, "stream_broke", {"productive": 5.0}, 10.0)
    toll.told(1, {"productive": 5.0, "restarting": 4.0}, 15.0)
    toll.died(1, 7, "stream_broke", {"productive": 5.0, "restarting": 4.0}, 16.0)
    toll.told(1, {"productive": 6.0, "restarting": 8.0}, 22.0)
    (death,) = toll.recent
    assert (death.back_s, death.lost_s) == (12.0, 8.0)


def test_one_that_has_told_nothing_cannot_be_reckoned() -> None:
    toll = Toll(max_groups=8)
    toll.died(1, 0, "silent", {}, 10.0)
    assert not toll.recent
    assert toll.by_group() == {}


seconds = st.dictionaries(st.sampled_from(["productive", *VICTIM_LOSES]), st.floats(0, 10))
moves = st.lists(st.tuples(st.integers(0, 9), st.booleans(), seconds), max_size=40)


@given(moves)
def test_nothing_falls_and_memory_is_bounded(moves: list[tuple[int, bool, dict[str, float]]]) -> None:
    toll, told = Toll(max_groups=4), dict[int, dict[str, float]]()
    for now_s, (group, dies, more) in enumerate(moves):
        account = told.setdefault(group, {})
        for cause, value in more.items():
            account[cause] = account.get(cause, 0.0) + value
        before = toll.by_group()
        if dies:
            toll.died(group, 1, "silent", account, float(now_s))
        else:
            toll.told(group, account, float(now_s))
        after = toll.by_group()
        assert all(after[key] >= value - 1e-9 for key, value in before.items() if key in after)
        assert len(after) <= 8
    assert sum(toll.by_group().values()) <= sum(map(sum, (each.values() for each in told.values()))) + 1e-6
    assert set(OTHERS_LOSE) <= set(VICTIM_LOSES)


def test_the_oldest_deaths_are_forgotten() -> None:
    toll = Toll(max_groups=4)
    for number in range(100):
        toll.died(number % 3, number, "silent", {"productive": float(number)}, float(number))
        toll.told(number % 3, {"productive": number + 0.5, "detection": 1.0}, number + 0.5)
    assert len(toll.recent) == 16
    assert toll.recent[-1].step == 99
    assert sum(toll.by_group().values()) == pytest.approx(100.0)


def test_one_that_never_comes_back_does_not_cost_the_others_for_ever() -> None:
    toll = Toll(max_groups=8)
    toll.told(0, {"productive": 5.0}, 9.0)
    toll.died(1, 7, "silent", {"productive": 5.0}, 10.0)
    toll.told(0, {"productive": 5.0, "ended_attempt": 3.0}, 11.0)
    for second in range(1000):
        toll.told(0, {"productive": 5.0, "ended_attempt": 3.0, "quorum": second / 10}, 50.0 + second)
    assert toll.by_group() == {1: 3.0}
