"""A flood of calls that are turned away is counted whole, and noted seldom."""

from lighthouse.turned_away import NOTE_EVERY_S, TurnedAway


def test_the_first_is_noted_at_once_and_the_others_together_later() -> None:
    away = TurnedAway()
    assert away.count("Evict", 100.0) == 1
    assert [away.count("Drain", 100.0 + number / 1000) for number in range(1000)] == [0] * 1000
    assert away.count("Evict", 100.0 + NOTE_EVERY_S) == 1001
    assert away.by_method == {"Evict": 2, "Drain": 1000}


def test_a_pulse_that_is_ignored_is_counted_and_never_noted() -> None:
    away = TurnedAway()
    away.ignore("Heartbeat")
    assert away.by_method == {"Heartbeat": 1}
    assert away.count("Quorum", 0.0) == 1
