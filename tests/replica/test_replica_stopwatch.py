"""The watch of a rank: the phases of an attempt add up to it, and the account of a life to that."""

import threading
from contextlib import suppress

import pytest

from replica.goodput import Doing, Fate
from replica.ledger import PhaseSeconds
from replica.stopwatch import Stopwatch


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def spend(self, watch: Stopwatch, doing: Doing, seconds: float) -> None:
        with watch.time(doing):
            self.now_s += seconds


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def watch(clock: Hand) -> Stopwatch:
    return Stopwatch(age_s=7.0, clock=clock)


def spent(watch: Stopwatch) -> dict[str, float]:
    return {cause: seconds for cause, seconds in watch.seconds_by_cause().items() if seconds}


def test_the_phases_of_an_attempt_are_told_and_add_up(clock: Hand, watch: Stopwatch) -> None:
    clock.now_s += 1.0
    watch.begin_attempt()
    for _ in range(2):
        clock.spend(watch, Doing.COMPUTE, 2.0)
    clock.spend(watch, Doing.VOTE, 0.5)
    clock.now_s += 0.25
    assert watch.seconds() == PhaseSeconds(quorum=0.25, compute=4.0, vote=0.5, total=4.75)
    watch.end_attempt(Fate.COMMITTED)
    assert spent(watch) == {"restarting": 8.0, "quorum": 0.25, "productive": 4.0, "reduce": 0.5}


def test_what_is_done_inside_of_another_is_taken_out_of_it(clock: Hand, watch: Stopwatch) -> None:
    watch.begin_attempt()
    with watch.time(Doing.QUORUM):
        clock.now_s += 1.0
        clock.spend(watch, Doing.CONFIGURE, 2.0)
        watch.enter(Doing.HEAL)
        clock.now_s += 4.0
    clock.now_s += 8.0
    assert watch.seconds() == PhaseSeconds(quorum=9.0, configure=2.0, heal=4.0, total=15.0)


def test_a_phase_that_raises_is_counted_too(clock: Hand, watch: Stopwatch) -> None:
    watch.begin_attempt()
    with suppress(RuntimeError), watch.time(Doing.REDUCE):
        clock.now_s += 1.0
        raise RuntimeError
    clock.now_s += 2.0
    assert (watch.seconds().reduce, watch.seconds().total) == (1.0, 3.0)


def test_what_was_between_two_attempts_is_told_with_the_second(clock: Hand, watch: Stopwatch) -> None:
    watch.begin_attempt()
    clock.spend(watch, Doing.COMPUTE, 1.0)
    watch.end_attempt(Fate.COMMITTED)
    clock.spend(watch, Doing.SAVE, 0.5)
    clock.now_s += 2.0
    watch.begin_attempt()
    clock.spend(watch, Doing.COMPUTE, 1.0)
    assert watch.seconds() == PhaseSeconds(compute=1.0, save=0.5, script=2.0, total=1.0)
    watch.end_attempt(Fate.COMMITTED)
    watch.begin_attempt()
    assert watch.seconds() == PhaseSeconds()


def test_another_thread_may_read_the_account_at_any_time(clock: Hand, watch: Stopwatch) -> None:
    watch.begin_attempt()
    clock.now_s += 3.0
    seen: list[dict[str, float]] = []
    reader = threading.Thread(target=lambda: seen.append(spent(watch)))
    reader.start()
    reader.join()
    assert seen == [{"restarting": 7.0, "quorum": 3.0}]
    assert watch.seconds().quorum == 3.0
