"""The roll call."""

from hypothesis import given
from hypothesis import strategies as st

from lighthouse.liveness import Liveness


def test_lives_until_the_timeout_and_again_when_heard() -> None:
    roll = Liveness(5.0)
    assert not roll.lives(1, 0.0)
    roll.heard(1, 10.0)
    assert roll.lives(1, 14.9)
    assert not roll.lives(1, 15.0)
    roll.heard(1, 20.0)
    assert roll.lives(1, 20.0)
    assert roll.age_s(1, 22.0) == 2.0


def test_dropped_is_dead_at_once_and_leaves_nothing() -> None:
    roll = Liveness(5.0)
    roll.heard(1, 0.0)
    roll.drop(1)
    roll.drop(1)
    assert not roll.lives(1, 0.0)
    assert roll.age_s(1, 0.0) is None
    assert len(roll) == 0


def test_a_late_note_does_not_set_the_time_back() -> None:
    roll = Liveness(5.0)
    roll.heard(1, 10.0)
    roll.heard(1, 8.0)
    assert roll.age_s(1, 10.0) == 0.0


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 20)), st.floats(0, 30))
def test_living_is_all_that_live(heard_s: dict[int, float], now_s: float) -> None:
    roll = Liveness(5.0)
    for key, at_s in heard_s.items():
        roll.heard(key, at_s)
    assert roll.living(now_s) == {key for key in heard_s if roll.lives(key, now_s)}
