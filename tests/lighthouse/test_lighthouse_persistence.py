"""Persistence: only what is seen at every look for long enough counts, each thing by itself."""

from lighthouse.persistence import SLOW_FOR_S, Persistence


def test_what_is_seen_for_long_enough_counts_with_its_latest_value() -> None:
    seen = Persistence()
    assert seen.look({1: 0.5}, 0.0) == {}
    assert seen.look({1: 0.6, None: 2.0}, SLOW_FOR_S - 0.1) == {}
    assert seen.look({1: 0.7, None: 2.0}, SLOW_FOR_S) == {1: 0.7}
    assert seen.look({1: 0.7, None: 2.0}, 2 * SLOW_FOR_S) == {1: 0.7, None: 2.0}


def test_a_break_begins_it_anew_and_is_not_remembered() -> None:
    seen = Persistence()
    seen.look({1: 0.5}, 0.0)
    assert seen.look({}, 5.0) == {}
    assert not seen.since_s
    assert seen.look({1: 0.5}, SLOW_FOR_S + 1) == {}
    assert seen.look({1: 0.5}, 2 * SLOW_FOR_S + 1) == {1: 0.5}
