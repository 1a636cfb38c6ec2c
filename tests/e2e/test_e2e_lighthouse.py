"""The Lighthouse goes away in the middle of training: nobody exits, everybody waits and goes on."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from train.cluster.errors import ClusterError
from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
PAUSE_S = 8.0


@pytest.fixture(scope="module")
def cluster(paced: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three groups of one rank, which the tests share."""
    out = tmp_path_factory.mktemp("lighthouse") / "run"
    with LocalCluster(out=out, groups=3, ranks=1, heartbeat_timeout_s=3.0, **paced) as started:
        yield started
        started.stop(grace_s=0.0)


def quorum_ids(cluster: LocalCluster, group: int) -> list[int]:
    path = cluster.out / "ledger" / f"group-{group}.jsonl"
    return [json.loads(line)["quorum_id"] for line in path.read_text().splitlines()]


def count(cluster: LocalCluster, kind: str) -> int:
    return len([event for event in cluster.events if event["kind"] == kind])


def test_it_stands_still_for_8_s(cluster: LocalCluster, wait_back: Callable[..., None]) -> None:
    wait_back(cluster, 0, 1, 2)
    pids = [cluster.pids(group) for group in range(3)]
    exits = count(cluster, "group_exited")
    cluster.pause_lighthouse()
    time.sleep(PAUSE_S)  # how long the fault lasts
    cluster.resume_lighthouse()
    wait_back(cluster, 0, 1, 2)

    assert [cluster.pids(group) for group in range(3)] == pids
    assert count(cluster, "group_exited") == exits
    assert cluster.report()["violations"] == []


def test_it_is_killed_and_started_again_while_a_group_starts(
    cluster: LocalCluster, wait_back: Callable[..., None]
) -> None:
    wait_back(cluster, 0, 1, 2)
    survivors = {group: cluster.pids(group) for group in (0, 1)}
    launched = count(cluster, "group_launched")
    cluster.kill_lighthouse()
    cluster.kill(2)
    # The killed group comes back while there is no Lighthouse, and waits for it like the others.
    deadline = time.monotonic() + 60
    while count(cluster, "group_launched") == launched:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = quorum_ids(cluster, 0)[-1]
    cluster.start_lighthouse()
    wait_back(cluster, 0, 1, 2)

    assert {group: cluster.pids(group) for group in (0, 1)} == survivors
    ids = quorum_ids(cluster, 0)
    assert ids[-1] > before
    assert ids == sorted(ids)
    report = cluster.report()
    assert report["violations"] == []
    assert report["steps_replayed"] == 0


def test_when_every_group_has_died_nobody_starts_from_random_weights(
    cluster: LocalCluster, wait_back: Callable[..., None]
) -> None:
    # The last test of the shared cluster, which does not survive it.
    wait_back(cluster, 0, 1, 2)
    for group in range(3):
        cluster.kill(group)
    last = cluster.step()
    with pytest.raises(ClusterError, match="every group of job tiny died"):
        cluster.wait_step(last + 1000)
    assert cluster.step() == last


def test_a_group_that_comes_after_the_end_is_told_so(local_cluster: StartCluster, tiny: Path) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=30, restart_delay_s=5.0)
    cluster.wait_step(25)
    cluster.kill(1)
    report = cluster.wait()
    path = cluster.out / "ledger" / "group-1.jsonl"
    assert max(json.loads(line)["step"] for line in path.read_text().splitlines()) < 29
    assert report["violations"] == []
    assert [event["code"] for event in cluster.events if event["kind"] == "group_exited"][-1] == 0
