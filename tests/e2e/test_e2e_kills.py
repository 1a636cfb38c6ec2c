"""Real processes are killed; ledgers and events must show that nobody else lost anything.

The tests share one cluster, which heals after each of them.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
RECOUNT = Path(__file__).parents[1] / "train" / "goodput_oracle.py"
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


@pytest.fixture(scope="module")
def cluster(paced: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three groups of two ranks, each under an address of its own."""
    out = tmp_path_factory.mktemp("kills") / "run"
    with LocalCluster(out=out, groups=3, ranks=2, addresses=ADDRESSES, **paced) as started:
        yield started
        started.stop(grace_s=0.0)


def events(cluster: LocalCluster, kind: str) -> list[dict[str, Any]]:
    return [event for event in cluster.events if event["kind"] == kind]


def ledger(cluster: LocalCluster, group: int) -> list[dict[str, Any]]:
    path = cluster.out / "ledger" / f"group-{group}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def check(cluster: LocalCluster) -> None:
    """Check that no kill so far cost anybody anything."""
    report = cluster.report()
    assert report["violations"] == []
    assert report["digests_agree"]
    assert (report["kills"], report["steps_replayed"]) == (len(events(cluster, "kill")), 0)
    assert (report["samples_lost"], report["samples_repeated"], report["backstop_reads"]) == (0, 0, 0)
    assert report["rejoin_s"]["max"] < 120


def test_a_group_is_killed_and_takes_its_donors_state(
    cluster: LocalCluster, wait_back: Callable[..., None]
) -> None:
    wait_back(cluster, 0, 1, 2)
    # Group 0: through its store the first ranks of all groups have connected.
    cluster.kill(0)
    wait_back(cluster, 0)
    check(cluster)

    started = {event["group"]: event["advertise_addr"] for event in events(cluster, "group_started")}
    assert started == dict(enumerate(ADDRESSES))
    heals = [event for event in events(cluster, "heal") if event["group"] == 0 and event["step"] > 0]
    assert {event["rank"] for event in heals} == {0, 1}
    assert all(event["healed_from"] and set(event["healed_from"]) <= {1, 2} for event in heals)
    assert all(event["bytes"] > 0 and event["mb_per_s"] > 0 for event in heals)
    digests = {line["step"]: line["digest"] for line in ledger(cluster, 1) if line["outcome"] == "committed"}
    for heal in (heal for heal in heals if heal["rank"] == 0):
        assert heal["digest"] == digests[heal["step"] - 1]
    state_bytes = sum(heal["bytes"] for heal in heals)
    assert sum(sent["bytes"] for sent in events(cluster, "heal_sent")) >= state_bytes > 0
    assert any(line["healed_from"] in ([1], [2], [1, 2]) for line in ledger(cluster, 0))


def test_a_single_rank_is_killed(cluster: LocalCluster, wait_back: Callable[..., None]) -> None:
    wait_back(cluster, 0, 1, 2)
    # Not rank 0: the group cannot go on without any of its ranks.
    cluster.kill(1, rank=1)
    wait_back(cluster, 1)
    check(cluster)


def test_a_launcher_is_killed_and_its_workers_end(
    cluster: LocalCluster, wait_back: Callable[..., None], wait_gone: Callable[..., None]
) -> None:
    wait_back(cluster, 0, 1, 2)
    workers = cluster.pids(2)
    cluster.kill_launcher(2)
    wait_gone(workers, within_s=10.0)
    wait_back(cluster, 2)
    check(cluster)


def test_two_groups_of_three_die_at_once(cluster: LocalCluster, wait_back: Callable[..., None]) -> None:
    wait_back(cluster, 0, 1, 2)
    survivor = cluster.pids(2)
    cluster.kill(0)
    cluster.kill(1)
    wait_back(cluster, 0, 1, 2)
    assert cluster.pids(2) == survivor
    check(cluster)


def test_a_run_with_a_kill_finishes_and_the_loss_falls(local_cluster: StartCluster, tiny: Path) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=60, restart_delay_s=0.0)
    cluster.wait_step(5)
    cluster.kill(1)
    report = cluster.wait()
    check(cluster)
    assert (report["steps_committed"], report["kills"]) == (60, 1)
    assert report["final_loss"] < report["first_loss"] - 1
    assert [event["code"] for event in events(cluster, "group_exited")][-2:] == [0, 0]
    check_time(cluster, report)


def check_time(cluster: LocalCluster, report: dict[str, Any]) -> None:
    """Every second of both groups has its cause, the kill its cost, and another count finds the same."""
    goodput = report["goodput"]
    seconds = {"productive": goodput["productive_s"], **goodput["lost_s_by_cause"]}
    whole_s = 2 * report["wall_s"]
    assert sum(seconds.values()) == pytest.approx(whole_s, rel=0.01)
    assert goodput["accounted"] == pytest.approx(1.0, abs=0.01)
    assert goodput["untold_s"] < 0.01 * whole_s
    command = [sys.executable, str(RECOUNT), str(cluster.out)]
    again = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    for cause, value in seconds.items():
        resolution_s = 0.001 * (again["stretches"].get(cause, 0) + 2)
        assert value == pytest.approx(again["seconds"].get(cause, 0.0), abs=resolution_s), cause
    assert goodput["ratio"] == pytest.approx(again["seconds"]["productive"] / whole_s, abs=0.01)
    for name, value in again["measures"].items():
        assert report["measures"][name] == (None if value is None else pytest.approx(value, rel=0.01)), name
    assert {cause for cause, value in seconds.items() if value > 0} >= {
        "productive", "reduce", "quorum", "ended_attempt", "detection", "reconfiguring", "restarting",
    }  # fmt: skip
    (kill,) = goodput["by_kill"]
    assert kill["group"] == 1
    assert kill["lost_s_by_cause"]["detection"] == pytest.approx(seconds["detection"], abs=0.01)
    assert kill["victim_s"] > kill["lost_s_by_cause"]["restarting"] > 0
