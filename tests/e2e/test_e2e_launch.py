"""Other launchers, other Lighthouses, other addresses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
ENDLESS = 100_000


def committed(cluster: LocalCluster, group: int) -> set[str]:
    """Incarnations of a group that committed a step."""
    lines = (cluster.out / "ledger" / f"group-{group}.jsonl").read_text().splitlines()
    return {line["incarnation"] for line in map(json.loads, lines) if line["outcome"] == "committed"}


def test_torchrun_restarts_a_group_in_place(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(
        config=tiny, groups=2, ranks=2, steps=ENDLESS, launcher="torchrun", max_restarts=3
    )
    wait_back(cluster, 0, 1)
    launcher = min(cluster.pids(1))
    for rank in (0, 1):
        cluster.kill(1, rank=rank)
        wait_back(cluster, 1)
    assert min(cluster.pids(1)) == launcher
    cluster.stop()
    assert len(committed(cluster, 1)) == 3
    report = cluster.report()
    assert report["violations"] == []
    assert report["kills"] == 2


def test_torchfts_own_lighthouse_serves_the_same_job(local_cluster: StartCluster, tiny: Path) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=40, lighthouse_kind="torchft")
    cluster.wait_step(5)
    cluster.kill(1)
    report = cluster.wait()
    assert report["violations"] == []
    assert (report["steps_committed"], report["kills"], report["steps_replayed"]) == (40, 1, 0)


def test_groups_on_different_addresses(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    addresses = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
    cluster = local_cluster(config=tiny, groups=3, ranks=1, steps=ENDLESS, addresses=addresses)
    wait_back(cluster, 0, 1, 2)
    cluster.kill(0)
    wait_back(cluster, 0)
    cluster.stop()
    started = [event for event in cluster.events if event["kind"] == "group_started"]
    assert {event["group"]: event["advertise_addr"] for event in started} == dict(enumerate(addresses))
    assert cluster.report()["violations"] == []
