"""The metrics of a group: what each line and event that it writes down adds to them."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from replica.ledger import EventKind, Outcome
from replica.metrics import GroupMetrics

LABELS = {"job": "night", "group": "2"}


class Watched:
    """A group's metrics with a clock that the test sets, and their values as they are scraped."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.seconds = {"productive": 1.5, "save": 0.0}
        self.counts = GroupMetrics(
            job="night", group=2, seconds_by_cause=lambda: self.seconds, clock=lambda: self.now_s
        )
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self.counts)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"headway_group_{name}", {**LABELS, **labels})


def committed(step: int, **fields: Any) -> dict[str, Any]:
    return {"step": step, "outcome": Outcome.COMMITTED, **fields}


def test_before_anything_has_happened() -> None:
    watched = Watched()
    assert watched.value("step") == 0
    assert watched.value("steps_committed_total") == 0
    assert all(watched.value("attempts_total", outcome=outcome) == 0 for outcome in Outcome)
    assert watched.value("heals_total") == watched.value("save_failures_total") == 0
    assert watched.value("records_lost_total") == 0
    for unknown in ("loss", "save_age_seconds", "last_heal_seconds"):
        assert watched.value(unknown) is None


def test_attempts() -> None:
    watched = Watched()
    watched.counts.attempted(committed(6, loss=2.5, grad_norm=0.7, lr=1e-3))
    watched.counts.attempted({"step": 7, "outcome": Outcome.RETRIED, "loss": None})
    watched.counts.attempted({"step": 7, "outcome": Outcome.DISCARDED})
    watched.counts.attempted(committed(7))
    assert watched.value("step") == 8
    assert watched.value("steps_committed_total") == 2
    found = [watched.value("attempts_total", outcome=outcome) for outcome in Outcome]
    assert found == [2, 1, 1]
    assert (watched.value("loss"), watched.value("grad_norm"), watched.value("learning_rate")) == (
        2.5,
        0.7,
        1e-3,
    )


def test_lines_that_were_lost() -> None:
    watched = Watched()
    watched.counts.lost()
    watched.counts.lost()
    assert watched.value("records_lost_total") == 2


def test_heals() -> None:
    watched = Watched()
    watched.counts.happened(EventKind.HEAL, {"step": 40, "seconds": 2.0, "bytes": 100})
    watched.now_s = 1050.0
    watched.counts.happened(EventKind.HEAL, {"step": 44, "seconds": 0.5, "bytes": 100})
    watched.counts.happened(EventKind.HEAL_SENT, {"step": 44, "bytes": 70, "seconds": 0.1})
    watched.counts.happened(EventKind.HEAL_FAILED, {"reason": "nobody answers"})
    assert watched.value("step") == 44
    assert watched.value("heals_total") == 2
    assert watched.value("heal_seconds_total") == 2.5
    assert watched.value("heal_received_bytes_total") == 200
    assert watched.value("heal_sent_bytes_total") == 70
    assert watched.value("heal_failures_total") == 1
    assert watched.value("last_heal_seconds") == 0.5
    assert watched.value("last_heal_timestamp_seconds") == 1050.0


def test_saves() -> None:
    watched = Watched()
    watched.counts.happened(EventKind.SAVE, {"step": 40, "seconds": 3.0, "bytes": 900})
    watched.counts.happened(EventKind.SAVE_FAILED, {"step": 60, "reason": "disk full"})
    watched.now_s = 1012.0
    assert watched.value("saves_total") == watched.value("save_failures_total") == 1
    assert watched.value("save_age_seconds") == 12.0
    assert watched.value("save_duration_seconds") == 3.0
    assert watched.value("save_bytes") == 900
    assert watched.value("step") == 0  # saving takes no step


def test_a_save_that_is_loaded_sets_the_step() -> None:
    watched = Watched()
    watched.counts.happened(EventKind.BACKSTOP_READ, {"step": 30, "bytes": 1, "seconds": 1.0})
    assert watched.value("step") == 30


def test_rounds_and_seconds() -> None:
    watched = Watched()
    for _ in range(3):
        watched.counts.happened(EventKind.ROUND_DONE, {"step": 1, "round": 0})
    watched.seconds = {"productive": 7.0, "save": 1.0}
    assert watched.value("rounds_total") == 3
    assert watched.value("seconds_total", cause="productive") == 7.0
    assert watched.value("seconds_total", cause="save") == 1.0


@pytest.mark.parametrize("kind", [kind for kind in EventKind if kind.value.startswith("group_")])
def test_other_events_change_nothing(kind: EventKind) -> None:
    watched = Watched()
    watched.counts.happened(kind, {"step": 9})
    assert watched.value("step") == 0
    assert watched.value("rounds_total") == 0
