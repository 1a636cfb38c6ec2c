"""The round clock: what of a round is waiting, on the CPU and on streams, and what does not count."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from lighthouse.client import RoundTimes
from replica.round_clock import RoundClock

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_rounds_and_the_waits_in_them_add_up(hand: Hand) -> None:
    clock = RoundClock(clock=hand)
    assert clock.times() == RoundTimes(rounds_s=0.0, waited_s=0.0)
    for _ in range(2):
        with clock.round():
            hand.now_s += 1.0
            with clock.collective(CPU):
                hand.now_s += 0.5
            with clock.waiting():
                hand.now_s += 0.25
    assert clock.times() == RoundTimes(rounds_s=3.5, waited_s=1.5)


def test_collectives_between_rounds_do_not_count(hand: Hand) -> None:
    clock = RoundClock(clock=hand)
    with clock.collective(CPU):
        hand.now_s += 5.0
    with clock.round():
        hand.now_s += 1.0
    assert clock.times() == RoundTimes(rounds_s=1.0, waited_s=0.0)


def test_a_round_that_broke_off_does_not_count(hand: Hand) -> None:
    clock = RoundClock(clock=hand)
    with suppress(RuntimeError), clock.round(), clock.waiting():
        hand.now_s += 1.0
        raise RuntimeError
    with clock.round():
        hand.now_s += 1.0
    assert clock.times() == RoundTimes(rounds_s=1.0, waited_s=0.0)


def stream_events(moments_ms: list[float], over: Callable[[int], bool]) -> type:
    """Events of a stream that come about at these moments, one after the other."""

    class StreamEvent:
        made = 0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.number = StreamEvent.made
            StreamEvent.made += 1

        def record(self) -> None:
            self.at_ms = moments_ms[self.number]

        def query(self) -> bool:
            return over(self.number)

        def elapsed_time(self, end: Any) -> float:
            return float(end.at_ms - self.at_ms)

    return StreamEvent


def test_on_a_gpu_the_time_on_the_stream_counts(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    events = stream_events([0.0, 200.0, 300.0, 400.0, 500.0, 900.0], over=lambda number: number < 4)
    monkeypatch.setattr(torch.cuda, "Event", events)
    clock = RoundClock(clock=hand)
    with clock.round():
        for _ in range(3):
            with clock.collective(GPU):
                hand.now_s += 0.001
        hand.now_s += 0.997
    times = clock.times()
    assert times.rounds_s == pytest.approx(1.0)
    assert times.waited_s == pytest.approx(0.3), "two collectives are over, the third is not"


def test_between_rounds_no_events_are_piled_up(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    events = stream_events([], over=lambda number: True)
    monkeypatch.setattr(torch.cuda, "Event", events)
    clock = RoundClock(clock=hand)
    with clock.collective(GPU):
        hand.now_s += 1.0
    with suppress(RuntimeError), clock.round():
        raise RuntimeError
    with clock.collective(GPU):
        hand.now_s += 1.0
    assert clock.times() == RoundTimes(rounds_s=0.0, waited_s=0.0)


def test_collectives_that_overlap_are_never_more_than_the_round(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", stream_events([0.0, 5000.0], over=lambda number: True))
    clock = RoundClock(clock=hand)
    with clock.round(), clock.collective(GPU):
        hand.now_s += 1.0
    assert clock.times() == RoundTimes(rounds_s=1.0, waited_s=1.0)
