"""The Lighthouse goes away in the middle of training: nobody exits, everybody waits and goes on."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from train.cluster.errors import ClusterError
from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
ENDLESS = 100_000
PAUSE_S = 8.0


def quorum_ids(cluster: LocalCluster, group: int) -> list[int]:
    path = cluster.out / "ledger" / f"group-{group}.jsonl"
    return [json.loads(line)["quorum_id"] for line in path.read_text().splitlines()]


def exits(cluster: LocalCluster) -> list[int]:
    return [event["group"] for event in cluster.events if event["kind"] == "group_exited"]


def test_it_is_killed_and_started_again_while_a_group_starts(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=3, ranks=1, steps=ENDLESS)
    wait_back(cluster, 0, 1, 2)
    survivors = {group: cluster.pids(group) for group in (0, 1)}
    cluster.kill_lighthouse()
    cluster.kill(2)
    # The killed group comes back while there is no Lighthouse, and waits for it like the others.
    launched = len([event for event in cluster.events if event["kind"] == "group_launched"])
    deadline = time.monotonic() + 60
    while len([event for event in cluster.events if event["kind"] == "group_launched"]) == launched:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = quorum_ids(cluster, 0)[-1]
    cluster.start_lighthouse()
    wait_back(cluster, 0, 1, 2)

    assert {group: cluster.pids(group) for group in (0, 1)} == survivors
    assert quorum_ids(cluster, 0)[-1] > before
    cluster.stop()
    ids = quorum_ids(cluster, 0)
    assert ids == sorted(ids)
    report = cluster.report()
    assert report["violations"] == []
    assert report["steps_replayed"] == 0


def test_it_stands_still_for_8_s(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=ENDLESS)
    wait_back(cluster, 0, 1)
    pids = [cluster.pids(group) for group in (0, 1)]
    cluster.pause_lighthouse()
    time.sleep(PAUSE_S)  # how long the fault lasts
    cluster.resume_lighthouse()
    wait_back(cluster, 0, 1)

    assert [cluster.pids(group) for group in (0, 1)] == pids
    assert exits(cluster) == []
    cluster.stop()
    assert cluster.report()["violations"] == []


def test_a_group_that_comes_after_the_end_is_told_so(local_cluster: StartCluster, tiny: Path) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=30, restart_delay_s=10.0)
    cluster.wait_step(15)
    cluster.kill(1)
    report = cluster.wait()
    path = cluster.out / "ledger" / "group-1.jsonl"
    assert max(json.loads(line)["step"] for line in path.read_text().splitlines()) < 29
    assert report["violations"] == []
    assert [event["code"] for event in cluster.events if event["kind"] == "group_exited"][-1] == 0


def test_when_every_group_has_died_nobody_starts_from_random_weights(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=ENDLESS, heartbeat_timeout_s=2.0)
    wait_back(cluster, 0, 1)
    cluster.kill(0)
    cluster.kill(1)
    last = cluster.step()
    with pytest.raises(ClusterError, match="every group of job tiny died"):
        cluster.wait_step(last + 1000)
    assert cluster.step() == last
