"""Groups that freeze, are sent away, leave as planned, or do not belong: the others hardly notice."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lighthouse.client import evict
from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
ENDLESS = 100_000
HEARTBEAT_S = 3.0


def ledger(cluster: LocalCluster, group: int) -> list[dict[str, Any]]:
    path = cluster.out / "ledger" / f"group-{group}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def exits(cluster: LocalCluster, group: int) -> list[int]:
    events = [event for event in cluster.events if event["kind"] == "group_exited"]
    return [event["code"] for event in events if event["group"] == group]


def longest_gap_s(cluster: LocalCluster, group: int, since: float) -> float:
    """Longest time between two commits of a group since `since`."""
    times = [line["t"] for line in ledger(cluster, group) if line["outcome"] == "committed"]
    late = [t for t in times if t > since]
    earlier = [t for t in times if t <= since][-1:]
    both = earlier + late
    return max(after - before for before, after in itertools.pairwise(both))


def wait_for_exit(cluster: LocalCluster, group: int, within_s: float = 60.0) -> int:
    deadline = time.monotonic() + within_s
    while not (codes := exits(cluster, group)):
        assert time.monotonic() < deadline, cluster.log_tails()
        time.sleep(0.05)
    return codes[-1]


def lighthouse(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lighthouse", *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("rank", [None, 1])
def test_a_frozen_group_is_out_after_the_heartbeat_timeout_and_comes_back(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None], rank: int | None
) -> None:
    cluster = local_cluster(config=tiny, groups=3, ranks=2, steps=ENDLESS, heartbeat_timeout_s=HEARTBEAT_S)
    wait_back(cluster, 0, 1, 2)
    frozen_at = time.time()
    cluster.pause(1, rank=rank)
    wait_back(cluster, 0, 2)
    # Far less than the collective's timeout of 180 s.
    assert longest_gap_s(cluster, 0, frozen_at) < HEARTBEAT_S + 10
    if rank is None:
        cluster.resume(1)
    assert wait_for_exit(cluster, 1) == 3
    wait_back(cluster, 1)
    cluster.stop()
    assert cluster.report()["violations"] == []


def drained(cluster: LocalCluster, group: int) -> None:
    """Check that a planned leave cost the survivors nothing."""
    assert wait_for_exit(cluster, group) == 0
    target = cluster.step() + 3
    survivors = [each for each in range(3) if each != group]
    for each in survivors:
        cluster.wait_step(target, group=each)
    cluster.stop()
    for each in survivors:
        assert {line["outcome"] for line in ledger(cluster, each)} == {"committed"}
    assert cluster.report()["violations"] == []


def test_sigterm_drains_a_group(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=3, ranks=2, steps=ENDLESS)
    wait_back(cluster, 0, 1, 2)
    os.kill(min(cluster.pids(0)), signal.SIGTERM)
    drained(cluster, 0)


def test_the_command_drains_a_group(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=3, ranks=1, steps=ENDLESS)
    wait_back(cluster, 0, 1, 2)
    told = lighthouse("drain", cluster.lighthouse_address, "tiny", "2")
    assert told.returncode == 0, told.stderr
    drained(cluster, 2)


def test_an_evicted_group_ends_and_comes_back(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=2, steps=ENDLESS)
    wait_back(cluster, 0, 1)
    assert evict(cluster.lighthouse_address, "tiny", 1)
    assert wait_for_exit(cluster, 1) == 3
    wait_back(cluster, 1)
    cluster.stop()
    # Nobody killed it, and the checker does not know of the operator's word.
    assert {str(each["kind"]) for each in cluster.report()["violations"]} == {"survivor_restarted"}


def test_a_group_with_other_settings_is_refused_and_nobody_notices(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=ENDLESS)
    wait_back(cluster, 0, 1)
    stranger = subprocess.run(
        [
            *(sys.executable, "-m", "replica.launch", "--nproc-per-node", "1", "-m", "train", str(tiny)),
            *("--replica-group-id", "5", "--lighthouse-addr", cluster.lighthouse_address),
            *("--job", "tiny", "--model.dim", "64", "--steps", str(ENDLESS)),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert stranger.returncode == 4, stranger.stderr
    assert "fingerprint" in stranger.stderr
    assert "Traceback" not in stranger.stderr
    wait_back(cluster, 0, 1)
    cluster.stop()
    assert {line["outcome"] for line in ledger(cluster, 0)} == {"committed"}
    assert {tuple(line["participants"]) for line in ledger(cluster, 0)} == {(0, 1)}
