"""Lag: the rank that never waits is the one that the others wait for; nonsense from the network is not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.lag import RoundTimes, Waits, lags


def waits(waited_share: float, rounds: int = 10, round_s: float = 0.4) -> Waits:
    """A rank that waits this share of each of its rounds, and has told of it after each."""
    told = Waits()
    for number in range(1, rounds + 1):
        told.tell(RoundTimes(rounds_s=number * round_s, waited_s=number * round_s * waited_share))
    return told


def test_the_others_wait_for_the_one_that_never_waits() -> None:
    found = lags({0: waits(0.75), 1: waits(0.05), 2: waits(0.7), 3: waits(0.75)})
    assert found[1] == pytest.approx(0.7)
    assert found[0] == 0.0
    assert found[2] == pytest.approx(0.05)


def test_waits_that_all_share_are_nobodys() -> None:
    assert lags({0: waits(0.6), 1: waits(0.6)}) == {0: pytest.approx(0.0), 1: pytest.approx(0.0)}


def test_a_rank_that_is_alone_or_has_told_too_little_is_not_judged() -> None:
    assert lags({0: waits(0.0)}) == {}
    assert waits(0.5, rounds=5).share() is None
    assert waits(0.5, rounds=6).share() == pytest.approx(0.5)
    assert lags({0: waits(0.0), 1: waits(0.9, rounds=3)}) == {}


def test_only_what_was_told_lately_counts() -> None:
    told = waits(0.9, rounds=100)
    last = told.told[-1]
    for number in range(1, 17):
        told.tell(RoundTimes(rounds_s=last.rounds_s + number, waited_s=last.waited_s))
    assert told.share() == 0.0


def test_a_pulse_without_a_new_round_says_nothing() -> None:
    told = waits(0.5, rounds=3)
    before = list(told.told)
    told.tell(before[-1])
    told.tell(before[0])
    assert list(told.told) == before


@pytest.mark.parametrize(
    ("rounds_s", "waited_s"),
    [(math.nan, 0.0), (1.0, math.nan), (math.inf, 1.0), (1.0, -0.1), (1.0, 2.0), (-2.0, -3.0), (1e300, 0.0)],
)
def test_what_cannot_be_is_passed_over(rounds_s: float, waited_s: float) -> None:
    told = Waits()
    told.tell(RoundTimes(rounds_s=rounds_s, waited_s=waited_s))
    assert not told.told


times = st.builds(RoundTimes, rounds_s=st.floats(), waited_s=st.floats())


@given(st.dictionaries(st.integers(0, 5), st.lists(times, max_size=40)))
def test_whatever_is_told_a_lag_is_a_share_and_memory_is_bounded(said: dict[int, list[RoundTimes]]) -> None:
    of_rank = {rank: Waits() for rank in said}
    for rank, told in said.items():
        for each in told:
            of_rank[rank].tell(each)
    assert all(0.0 <= lag <= 1.0 for lag in lags(of_rank).values())
    assert all(len(each.told) <= 16 for each in of_rank.values())
