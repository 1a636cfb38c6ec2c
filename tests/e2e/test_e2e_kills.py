"""Real processes are killed; ledgers and events must show that nobody else lost anything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
ENDLESS = 100_000


def started(cluster: LocalCluster, kind: str) -> list[dict[str, Any]]:
    return [event for event in cluster.events if event["kind"] == kind]


def check(cluster: LocalCluster, kills: int) -> dict[str, Any]:
    report = cluster.report()
    assert report["violations"] == []
    assert report["digests_agree"]
    assert (report["kills"], report["steps_replayed"]) == (kills, 0)
    assert (report["samples_lost"], report["samples_repeated"], report["backstop_reads"]) == (0, 0, 0)
    return report


def test_groups_are_killed_in_every_way(
    local_cluster: StartCluster,
    tiny: Path,
    wait_back: Callable[..., None],
    wait_gone: Callable[..., None],
) -> None:
    cluster = local_cluster(config=tiny, groups=3, ranks=2, steps=ENDLESS)
    wait_back(cluster, 0, 1, 2)

    # A whole group; group 0, whose store the first rank of all groups connects through, is first.
    cluster.kill(0)
    wait_back(cluster, 0)
    # A single rank that is not rank 0: its group cannot go on without it.
    cluster.kill(1, rank=1)
    wait_back(cluster, 1)
    # A launcher: its workers must not survive it.
    workers = cluster.pids(2)
    cluster.kill_launcher(2)
    wait_gone(workers, within_s=10.0)
    wait_back(cluster, 2)
    cluster.stop()

    report = check(cluster, kills=3)
    groups_that_healed = {event["group"] for event in started(cluster, "heal")}
    assert groups_that_healed == {0, 1, 2}
    assert report["rejoin_s"]["max"] < 120


def test_two_groups_of_three_die_at_once(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=3, ranks=1, steps=ENDLESS)
    wait_back(cluster, 0, 1, 2)
    survivor = cluster.pids(2)
    cluster.kill(0)
    cluster.kill(1)
    wait_back(cluster, 0, 1, 2)
    assert cluster.pids(2) == survivor
    cluster.stop()

    check(cluster, kills=2)
    assert len([event for event in started(cluster, "group_started") if event["group"] == 2]) == 1


def test_a_group_comes_back_again_and_again(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=ENDLESS, restart_delay_s=0.0)
    wait_back(cluster, 0, 1)
    for _ in range(4):
        cluster.kill(1)
        wait_back(cluster, 1)
    cluster.stop()
    check(cluster, kills=4)


def test_a_run_with_a_kill_finishes_and_the_loss_falls(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=2, steps=120)
    cluster.wait_step(10)
    cluster.kill(1)
    report = cluster.wait()
    assert report["violations"] == []
    assert (report["steps_committed"], report["kills"], report["steps_replayed"]) == (120, 1, 0)
    assert report["final_loss"] < report["first_loss"] - 1
    assert all(event["code"] == 0 for event in started(cluster, "group_exited")[-2:])
