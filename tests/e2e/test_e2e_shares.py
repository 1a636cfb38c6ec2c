"""How rounds are shared out: who is slow is named and stays, who has more rounds is not, spares step in."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lighthouse.client import LighthouseError, status, watch_events
from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
ENDLESS = 100_000
# More than the eight phases of computing that the Lighthouse remembers.
MEMORY_STEPS = 10


def commits(cluster: LocalCluster, group: int) -> list[dict[str, Any]]:
    path = cluster.out / "ledger" / f"group-{group}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["outcome"] == "committed"]


def owners(line: dict[str, Any]) -> list[int]:
    return [group for _, group in line["rounds"]]


def named(cluster: LocalCluster) -> tuple[dict[int, float], dict[int, dict[str, float]]]:
    """Of each group: how slow it is, and its slow ranks."""
    (job,) = status(cluster.lighthouse_address)["jobs"]
    groups = {group["group"]: group for group in job["groups"]}
    return (
        {number: group["slow"] for number, group in groups.items()},
        {number: group["slow_ranks"] for number, group in groups.items()},
    )


def listen(address: str) -> list[dict[str, Any]]:
    """The Lighthouse's events from now on, a list that grows until the Lighthouse ends."""
    heard: list[dict[str, Any]] = []

    def run() -> None:
        with suppress(LighthouseError):
            heard.extend(watch_events(address))

    threading.Thread(target=run, daemon=True).start()
    return heard


def test_a_group_and_its_rank_are_named_for_being_slow_and_not_for_having_more_rounds(
    local_cluster: StartCluster, tiny: Path, tmp_path: Path, wait_back: Callable[..., None]
) -> None:
    slow = tmp_path / "slow"
    cluster = local_cluster(
        Path(__file__).with_name("slow_trainer.py"),
        args=(str(tiny), "--steps", str(ENDLESS), "--job.micro_batches", "6"),
        groups=2,
        ranks=2,
        steps=ENDLESS,
        env={"HEADWAY_SLOW": str(slow)},
    )
    heard = listen(cluster.lighthouse_address)
    wait_back(cluster, 0, 1)
    cluster.wait_step(cluster.step() + MEMORY_STEPS)
    assert sorted(owners(commits(cluster, 0)[-1])) == [0, 0, 1]
    assert named(cluster) == ({0: 0.0, 1: 0.0}, {0: {}, 1: {}})

    pids = [cluster.pids(group) for group in (0, 1)]
    slow.touch()
    deadline = time.monotonic() + 60
    while not ((found := named(cluster))[0][1] and found[1][1]):
        assert time.monotonic() < deadline, cluster.log_tails()
        time.sleep(0.05)
    assert found[0][1] > 1.5
    assert found[0][0] == 0.0
    assert set(found[1][1]) == {"1"}
    assert found[1][0] == {}
    wait_back(cluster, 0, 1)
    assert [cluster.pids(group) for group in (0, 1)] == pids
    cluster.stop()

    told = [event for event in heard if event["kind"] == "replica_slow"]
    assert {event["replica"] for event in told} == {"group 1"}
    (of_group,) = [event for event in told if "rank" not in event]
    (of_rank,) = [event for event in told if "rank" in event]
    assert of_group["times_the_median"] > 1.5
    assert (of_rank["rank"], of_rank["others_wait_share"] > 1 / 3) == (1, True)
    assert {line["outcome"] for group in (0, 1) for line in commits(cluster, group)} == {"committed"}
    assert cluster.report()["violations"] == []


def test_a_hot_spare_computes_nothing_and_steps_in_without_a_heal(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    two = {"job.micro_batches": "2"}
    cluster = local_cluster(config=tiny, groups=3, steps=ENDLESS, overrides=two, restart=False)
    wait_back(cluster, 0, 1, 2)
    before = commits(cluster, 0)[-1]
    assert before["participants"] == [0, 1, 2]
    victim, other = owners(before)
    (spare,) = {0, 1, 2} - {victim, other}
    assert not any(event["group"] == spare for event in cluster.events if event["kind"] == "round_done")
    assert not any(spare in owners(line) for line in commits(cluster, spare))

    pids = cluster.pids(spare)
    cluster.kill(victim)
    cluster.wait_step(cluster.step() + 3, group=spare)
    stand_in = commits(cluster, spare)[-1]
    assert sorted(owners(stand_in)) == sorted((other, spare))
    assert cluster.pids(spare) == pids
    cluster.stop()

    steps = [line["step"] for line in commits(cluster, spare)]
    assert steps == list(range(len(steps))), "it was level all the time"
    assert not any(event["step"] > 0 for event in cluster.events if event["kind"] == "heal")
    report = cluster.report()
    assert report["violations"] == []
    assert (report["kills"], report["steps_replayed"], report["digests_agree"]) == (1, 0, True)
    assert (report["samples_lost"], report["samples_repeated"]) == (0, 0)
