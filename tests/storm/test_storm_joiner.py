"""A joiner that is lost again and again, and gets back in each time."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.storm, pytest.mark.timeout(900)]
ENDLESS = 1_000_000
JOINER = 1
TIMES = 5


def gaps_s(seed: int) -> list[float]:
    """Five seconds between 1 and 8, one from each fifth of that, in shuffled order."""
    source = random.Random(seed)
    gaps = [1 + 7 * (fifth + source.random()) / TIMES for fifth in range(TIMES)]
    source.shuffle(gaps)
    return gaps


def wait_back(cluster: LocalCluster, *groups: int) -> None:
    target = cluster.step() + 1
    for group in groups:
        cluster.wait_step(target, group=group, timeout_s=180.0)


def incarnations_that_committed(cluster: LocalCluster, group: int) -> int:
    lines = (cluster.out / "ledger" / f"group-{group}.jsonl").read_text().splitlines()
    entries = map(json.loads, lines)
    return len({entry["incarnation"] for entry in entries if entry["outcome"] == "committed"})


def test_it_stays_away_for_1_to_8_s_five_times(
    local_cluster: StartCluster, tiny: Path, judge: Callable[[Path, str], dict[str, Any]]
) -> None:
    cluster = local_cluster(config=tiny, groups=3, ranks=2, steps=ENDLESS)
    wait_back(cluster, 0, 1, 2)
    others = [cluster.pids(group) for group in (0, 2)]
    for gap_s in gaps_s(seed=0):
        cluster.kill(JOINER, down_s=gap_s)
        wait_back(cluster, JOINER)
    assert [cluster.pids(group) for group in (0, 2)] == others
    cluster.stop()
    assert incarnations_that_committed(cluster, JOINER) == 1 + TIMES
    report = judge(cluster.out, "a joiner that was away for 1 to 8 s, five times")
    assert (report["kills"], report["heals"]) == (TIMES, TIMES)


def test_it_dies_1_to_8_s_after_its_start_five_times(
    local_cluster: StartCluster, tiny: Path, judge: Callable[[Path, str], dict[str, Any]]
) -> None:
    cluster = local_cluster(config=tiny, groups=3, ranks=2, steps=ENDLESS, restart_delay_s=0.0)
    wait_back(cluster, 0, 1, 2)
    others = [cluster.pids(group) for group in (0, 2)]
    cluster.kill(JOINER)
    for life_s in gaps_s(seed=1):
        wait_alive(cluster, JOINER)
        time.sleep(life_s)  # how long this life lasts, wherever it gets in that time
        cluster.kill(JOINER)
    wait_back(cluster, 0, 1, 2)
    assert [cluster.pids(group) for group in (0, 2)] == others
    cluster.stop()
    report = judge(cluster.out, "a joiner that died 1 to 8 s after its start, five times")
    assert report["kills"] == 1 + TIMES


def wait_alive(cluster: LocalCluster, group: int) -> None:
    deadline_s = time.monotonic() + 30
    while not cluster.alive(group):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
