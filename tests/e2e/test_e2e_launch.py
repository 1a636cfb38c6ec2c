"""Other launchers, other Lighthouses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]


def committed(cluster: LocalCluster, group: int) -> set[str]:
    """Incarnations of a group that committed a step."""
    lines = (cluster.out / "ledger" / f"group-{group}.jsonl").read_text().splitlines()
    return {line["incarnation"] for line in map(json.loads, lines) if line["outcome"] == "committed"}


def test_torchrun_restarts_a_group_in_place(
    local_cluster: StartCluster, paced: dict[str, Any], wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(**paced, groups=2, ranks=2, launcher="torchrun", max_restarts=3)
    wait_back(cluster, 0, 1)
    launcher = cluster.pids(1)[0]
    for rank in (0, 1):
        cluster.kill(1, rank=rank)
        wait_back(cluster, 1)
    assert cluster.pids(1)[0] == launcher
    cluster.stop(grace_s=0.0)
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
