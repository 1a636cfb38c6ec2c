"""How long a rank's rounds take, and how much of that it waits for the other ranks of its group."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lighthouse.client import RoundTimes


class RoundClock:
    """Belongs to the training thread; `times` may be asked for on any thread.

    On a CPU a collective holds the thread up for as long as it waits. On a GPU only its stream waits,
    so that there the time between two events on that stream counts, which is read when the round is
    over: nothing is synchronised for it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waited_s = 0.0
        self._is_on = False
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._times = RoundTimes(rounds_s=0.0, waited_s=0.0)

    def times(self) -> RoundTimes:
        """Of this life so far: seconds in rounds that were finished, and of waiting in them."""
        return self._times

    @contextmanager
    def round(self) -> Iterator[None]:
        """The block is one round. One that ends in an exception does not count."""
        self._waited_s, self._spans, self._is_on = 0.0, [], True
        began_s = self._clock()
        try:
            yield
        finally:
            self._is_on = False
        took_s = self._clock() - began_s
        waited_s = min(took_s, self._waited_s + self._waited_on_streams_s())
        before = self._times
        self._times = RoundTimes(rounds_s=before.rounds_s + took_s, waited_s=before.waited_s + waited_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block holds this thread up until the other ranks are there."""
        began_s = self._clock()
        yield
        self._waited_s += self._clock() - began_s

    @contextmanager
    def collective(self, device: torch.device) -> Iterator[None]:
        """The block is a collective of the group's ranks, on tensors of `device`."""
        if device.type != "cuda":
            with self.waiting():
                yield
            return
        if not self._is_on:  # an evaluation: nobody would read the events
            yield
            return
        span = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        span[0].record()
        yield
        span[1].record()
        self._spans.append(span)

    def _waited_on_streams_s(self) -> float:
        """Of the collectives of this round that are over. The ranks have met since: all are."""
        over = (span for span in self._spans if span[1].query())
        return sum(float(begin.elapsed_time(end)) for begin, end in over) / 1000
