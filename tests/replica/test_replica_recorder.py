"""Evidence of a group: written by the right rank, or nowhere without a folder."""

import json
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from lighthouse.address import HostPort
from replica.errors import UserError
from replica.ledger import EventKind, Outcome, events_path, ledger_path
from replica.metrics import GroupMetrics
from replica.metrics_server import MetricsServer
from replica.recorder import Recorder

ATTEMPT: dict[str, Any] = {"step": 3, "quorum_id": 7, "outcome": Outcome.COMMITTED}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_all(out: Path | None, rank: int) -> None:
    recorder = Recorder(out=out, group=2, rank=rank, incarnation="cafe0001")
    recorder.event(EventKind.HEAL_SENT, step=3, bytes=10, seconds=0.1)
    recorder.group_event(EventKind.FINISHED, step=3)
    recorder.attempt(**ATTEMPT)
    recorder.close()


def test_what_is_written_down_is_counted_also_without_a_folder_and_served_until_it_is_closed() -> None:
    counts = GroupMetrics(job="night", group=2, seconds_by_cause=dict)
    bind = HostPort(host="127.0.0.1", port=0)
    recorder = Recorder(
        out=None, group=2, rank=0, incarnation="cafe0001", metrics=MetricsServer(counts, bind)
    )
    recorder.event(EventKind.HEAL_SENT, step=3, bytes=10, seconds=0.1)
    recorder.attempt(**ATTEMPT)
    assert recorder.metrics_url is not None
    with urlopen(recorder.metrics_url, timeout=10.0) as answer:
        lines = answer.read().decode().splitlines()
    assert 'headway_group_heal_sent_bytes_total{group="2",job="night"} 10.0' in lines
    assert 'headway_group_steps_committed_total{group="2",job="night"} 1.0' in lines
    recorder.close()
    with pytest.raises(URLError):
        urlopen(recorder.metrics_url, timeout=10.0)


def test_rank_zero_writes_events_and_the_ledger(tmp_path: Path) -> None:
    write_all(tmp_path, rank=0)
    events = lines(events_path(tmp_path))
    assert [event["kind"] for event in events] == ["heal_sent", "finished"]
    assert all((event["group"], event["incarnation"]) == (2, "cafe0001") for event in events)
    (attempt,) = lines(ledger_path(tmp_path, 2))
    assert (attempt["step"], attempt["quorum_id"], attempt["outcome"]) == (3, 7, "committed")
    assert (attempt["group"], attempt["incarnation"]) == (2, "cafe0001")


def test_other_ranks_write_only_what_is_their_own(tmp_path: Path) -> None:
    write_all(tmp_path, rank=1)
    (event,) = lines(events_path(tmp_path))
    assert (event["kind"], event["rank"]) == ("heal_sent", 1)
    assert not ledger_path(tmp_path, 2).exists()


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_all(None, rank=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_is_full_ends_no_training_and_is_counted(tmp_path: Path, rank: int) -> None:
    for path in (events_path(tmp_path), ledger_path(tmp_path, 2)):
        path.parent.mkdir(exist_ok=True)
        path.symlink_to("/dev/full")
    counts = GroupMetrics(job="night", group=2, seconds_by_cause=dict)
    metrics = MetricsServer(counts, HostPort(host="127.0.0.1", port=0)) if rank == 0 else None
    recorder = Recorder(out=tmp_path, group=2, rank=rank, incarnation="cafe0001", metrics=metrics)
    recorder.event(EventKind.HEAL_SENT, step=3, bytes=10, seconds=0.1)
    recorder.group_event(EventKind.FINISHED, step=3)
    recorder.attempt(**ATTEMPT)
    registry = CollectorRegistry()
    registry.register(counts)
    labels = {"job": "night", "group": "2"}
    assert registry.get_sample_value("headway_group_records_lost_total", labels) == (3 if rank == 0 else 0)
    recorder.close()


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another folder with --out"):
        Recorder(out=tmp_path / "file", group=0, rank=0, incarnation="cafe0001")


def test_a_ledger_that_cannot_be_written_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(UserError, match="cannot write below"):
        Recorder(out=tmp_path, group=0, rank=0, incarnation="cafe0001")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
