"""Groups that freeze, are sent away, leave as planned, or do not belong: the others hardly notice."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from train.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.e2e
HEARTBEAT_S = 3.0


@pytest.fixture(scope="module")
def cluster(paced: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three groups of two ranks, which the tests share."""
    out = tmp_path_factory.mktemp("notices") / "run"
    options = {**paced, "heartbeat_timeout_s": HEARTBEAT_S}
    with LocalCluster(out=out, groups=3, ranks=2, **options) as started:
        yield started
        started.stop(grace_s=0.0)


def ledger(cluster: LocalCluster, group: int, since_t: float) -> list[dict[str, Any]]:
    """The lines that a group wrote after `since_t`."""
    path = cluster.out / "ledger" / f"group-{group}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["t"] > since_t]


def longest_gap_s(cluster: LocalCluster, group: int, since_t: float) -> float:
    """Longest time between two commits of a group after `since_t`."""
    committed = [line["t"] for line in ledger(cluster, group, since_t) if line["outcome"] == "committed"]
    return max(after - before for before, after in itertools.pairwise([since_t, *committed]))


def wait_for_exit(cluster: LocalCluster, group: int, since_t: float, within_s: float = 60.0) -> int:
    """The exit code of the first life of a group that ends after `since_t`."""
    deadline = time.monotonic() + within_s
    while True:
        exits = [event for event in cluster.events if event["kind"] == "group_exited"]
        codes = [event["code"] for event in exits if event["group"] == group and event["t"] > since_t]
        if codes:
            return int(codes[0])
        assert time.monotonic() < deadline, cluster.log_tails()
        time.sleep(0.1)


def test_a_group_with_other_settings_is_refused_and_nobody_notices(
    cluster: LocalCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    wait_back(cluster, 0, 1, 2)
    began_t = time.time()
    stranger = subprocess.run(
        [
            *(sys.executable, "-m", "replica.launch", "--nproc-per-node", "2", "-m", "train", str(tiny)),
            *("--replica-group-id", "5", "--lighthouse-addr", cluster.lighthouse_address),
            *("--job", "tiny", "--model.dim", "64", "--steps", "100000"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert stranger.returncode == 4, stranger.stderr
    assert "fingerprint differs: this group has " in stranger.stderr
    assert " model.dim=64, the running job has " in stranger.stderr
    assert "Traceback" not in stranger.stderr
    wait_back(cluster, 0, 1, 2)
    lines = ledger(cluster, 0, began_t)
    assert {line["outcome"] for line in lines} == {"committed"}
    assert {tuple(line["participants"]) for line in lines} == {(0, 1, 2)}


@pytest.mark.parametrize("rank", [None, 1])
def test_a_frozen_group_is_out_after_the_heartbeat_timeout_and_comes_back(
    cluster: LocalCluster, wait_back: Callable[..., None], rank: int | None
) -> None:
    wait_back(cluster, 0, 1, 2)
    frozen_t = time.time()
    cluster.pause(1, rank=rank)
    wait_back(cluster, 0, 2)
    # Far less than the collective's timeout of 180 s.
    assert longest_gap_s(cluster, 0, frozen_t) < HEARTBEAT_S + 10
    if rank is None:
        cluster.resume(1)
    assert wait_for_exit(cluster, 1, frozen_t) == 3
    wait_back(cluster, 1)
    assert cluster.report()["violations"] == []


def test_an_evicted_group_ends_and_comes_back(cluster: LocalCluster, wait_back: Callable[..., None]) -> None:
    wait_back(cluster, 0, 1, 2)
    began_t = time.time()
    cluster.evict(1)
    assert wait_for_exit(cluster, 1, began_t) == 3
    wait_back(cluster, 1)
    report = cluster.report()
    assert report["violations"] == []
    assert (report["kills"], report["steps_replayed"]) == (0, 0)


def drained(cluster: LocalCluster, group: int, survivors: Sequence[int], since_t: float) -> None:
    """Check that a planned leave cost the survivors nothing."""
    assert wait_for_exit(cluster, group, since_t) == 0
    target = cluster.step() + 3
    for each in survivors:
        cluster.wait_step(target, group=each)
        assert {line["outcome"] for line in ledger(cluster, each, since_t)} == {"committed"}
    assert cluster.report()["violations"] == []


def test_sigterm_and_the_command_drain_groups(cluster: LocalCluster, wait_back: Callable[..., None]) -> None:
    # The last test of the shared cluster: a group that is drained does not come back.
    wait_back(cluster, 0, 1, 2)
    began_t = time.time()
    os.kill(cluster.pids(0)[0], signal.SIGTERM)
    drained(cluster, 0, survivors=(1, 2), since_t=began_t)

    began_t = time.time()
    told = subprocess.run(
        [sys.executable, "-m", "lighthouse", "drain", cluster.lighthouse_address, "tiny", "2"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    drained(cluster, 2, survivors=(1,), since_t=began_t)
