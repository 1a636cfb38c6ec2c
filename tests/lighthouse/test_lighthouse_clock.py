"""Clocks: the system's, the manual one, and the one that leaves pauses out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.clock import ManualClock, RunningClock, SystemClock


def test_system_clock_rises() -> None:
    clock = SystemClock()
    assert clock.now_s() <= clock.now_s()
    assert clock.wall_s() > 1.7e9


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now_s=5.0, wall_s=100.0)
    assert (clock.now_s(), clock.wall_s()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (clock.now_s(), clock.wall_s()) == (7.5, 102.5)


def test_a_pause_is_left_out_and_a_short_gap_is_not() -> None:
    source = ManualClock()
    clock = RunningClock(source, longest_gap_s=1.0)
    source.advance(0.9)
    assert clock.now_s() == pytest.approx(0.9)
    source.advance(8.0)
    assert clock.now_s() == pytest.approx(0.9)
    assert clock.paused_s == pytest.approx(8.0)
    source.advance(0.5)
    assert clock.now_s() == pytest.approx(1.4)
    assert clock.wall_s() == source.wall_s()


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=30))
def test_never_goes_back_and_never_leaps(gaps_s: list[float]) -> None:
    source = ManualClock()
    clock = RunningClock(source, longest_gap_s=1.0)
    last_s = clock.now_s()
    for gap_s in gaps_s:
        source.advance(gap_s)
        now_s = clock.now_s()
        assert -1e-9 <= now_s - last_s <= 1.0 + 1e-9
        last_s = now_s
