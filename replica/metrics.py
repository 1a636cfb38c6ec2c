"""What a group tells Prometheus: counted from the lines and events that it writes down anyway."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from replica.ledger import EventKind, Outcome

_PREFIX = "headway_group"
_LABELS = ("job", "group")
_STEP_TAKEN_OVER = (EventKind.HEAL, EventKind.BACKSTOP_READ)


class GroupMetrics(Collector):
    """Of one life of a group, as its rank 0 sees it. Any thread may tell or collect.

    Labels are job, group, cause and outcome: never an incarnation, never an address. Counters begin
    at 0 with each life, as those of every restarted process do.
    """

    def __init__(
        self,
        *,
        job: str,
        group: int,
        seconds_by_cause: Callable[[], Mapping[str, float]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """seconds_by_cause: where the time of this life went. clock: seconds since 1970."""
        self._own = [job, str(group)]
        self._seconds_by_cause = seconds_by_cause
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._sums: dict[str, float] = dict.fromkeys(_COUNTED, 0.0)
        self._latest: dict[str, float] = {"step": 0.0}
        self._saved_t: float | None = None

    def attempted(self, line: Mapping[str, Any]) -> None:
        """An attempt has ended: the fields of its line in the ledger."""
        with self._lock:
            outcome = Outcome(line["outcome"])
            self._counts[outcome] += 1
            if outcome is not Outcome.COMMITTED:
                return
            self._latest["step"] = line["step"] + 1
            for name in ("loss", "grad_norm", "lr"):
                if line.get(name) is not None:
                    self._latest[name] = line[name]

    def happened(self, kind: EventKind, event: Mapping[str, Any]) -> None:
        """Something else was written down: the fields of the event."""
        with self._lock:
            for name, amount in _amounts(kind, event).items():
                self._sums[name] += amount
            if kind in _STEP_TAKEN_OVER:
                self._latest["step"] = event["step"]
            if kind is EventKind.HEAL:
                self._latest |= {"last_heal_seconds": event["seconds"], "last_heal_t": self._clock()}
            elif kind is EventKind.SAVE:
                self._latest |= {"save_seconds": event["seconds"], "save_bytes": event["bytes"]}
                self._saved_t = self._clock()

    def lost(self) -> None:
        """A line or event could not be written down."""
        with self._lock:
            self._sums["records_lost"] += 1

    def collect(self) -> Iterator[Metric]:
        """All metrics, as of now. Runs on the thread that serves them."""
        with self._lock:
            counts, sums, latest = dict(self._counts), dict(self._sums), dict(self._latest)
            saved_t = self._saved_t
        if saved_t is not None:
            latest["save_age"] = max(0.0, self._clock() - saved_t)
        yield from (self._gauge(*_GAUGES[name], value) for name, value in latest.items())
        yield from (self._counter(name, text, sums[name]) for name, text in _COUNTED.items())
        committed = float(counts.get(Outcome.COMMITTED, 0))
        yield self._counter("steps_committed", "Steps that this life has committed.", committed)
        by_outcome = {outcome.value: float(counts.get(outcome, 0)) for outcome in Outcome}
        yield self._split("attempts", "Attempts at a step, by how they ended.", "outcome", by_outcome)
        causes = self._seconds_by_cause()
        yield self._split("seconds", "Where the time of this life went.", "cause", causes)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry need not ask what is to come."""
        return iter(())

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=_LABELS)
        family.add_metric(self._own, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=_LABELS)
        family.add_metric(self._own, value)
        return family

    def _split(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=(*_LABELS, label))
        for value, number in values.items():
            family.add_metric([*self._own, value], number)
        return family


_GAUGES = {
    "step": ("step", "Steps that the state of this group holds."),
    "loss": ("loss", "Mean loss of the last step that was committed."),
    "grad_norm": ("grad_norm", "Norm of its gradient, before clipping."),
    "lr": ("learning_rate", "Its learning rate."),
    "last_heal_seconds": ("last_heal_seconds", "Time that the last heal took."),
    "last_heal_t": ("last_heal_timestamp_seconds", "When it was over, since 1970."),
    "save_seconds": ("save_duration_seconds", "Time that this group's last save took."),
    "save_bytes": ("save_bytes", "Its size."),
    "save_age": ("save_age_seconds", "Time since it was durable."),
}
_COUNTED = {
    "rounds": "Rounds that were computed.",
    "heals": "States taken from peers.",
    "heal_seconds": "Time that this took.",
    "heal_received_bytes": "Bytes that rank 0 has taken from peers.",
    "heal_sent_bytes": "Bytes that rank 0 has given to peers.",
    "heal_failures": "Heals that did not come about.",
    "saves": "Saves that are durable.",
    "save_failures": "Saves that failed.",
    "records_lost": "Lines that rank 0 could not write to the ledger and the event log.",
}


def _amounts(kind: EventKind, event: Mapping[str, Any]) -> dict[str, float]:
    """What an event adds to which of the counters."""
    match kind:
        case EventKind.ROUND_DONE:
            return {"rounds": 1}
        case EventKind.HEAL:
            taken = {"heal_seconds": event["seconds"], "heal_received_bytes": event["bytes"]}
            return {"heals": 1, **taken}
        case EventKind.HEAL_SENT:
            return {"heal_sent_bytes": event["bytes"]}
        case EventKind.HEAL_FAILED:
            return {"heal_failures": 1}
        case EventKind.SAVE:
            return {"saves": 1}
        case EventKind.SAVE_FAILED:
            return {"save_failures": 1}
    return {}
