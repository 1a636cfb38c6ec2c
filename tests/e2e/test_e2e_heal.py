"""A heal moves a donor's state into the joiner: proven with bytes, digests and a donor that lies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
ENDLESS = "100000"


def events(cluster: LocalCluster, kind: str) -> list[dict[str, Any]]:
    return [event for event in cluster.events if event["kind"] == kind]


def ledger(cluster: LocalCluster, group: int) -> list[dict[str, Any]]:
    path = cluster.out / "ledger" / f"group-{group}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_joiner_takes_the_donors_state(
    local_cluster: StartCluster, tiny: Path, wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(config=tiny, groups=2, ranks=2, steps=int(ENDLESS))
    cluster.wait_step(3)
    cluster.kill(1)
    wait_back(cluster, 1)
    cluster.stop()

    digests = {line["step"]: line["digest"] for line in ledger(cluster, 0) if line["outcome"] == "committed"}
    heals = [event for event in events(cluster, "heal") if event["step"] > 0]
    assert {event["rank"] for event in heals} == {0, 1}
    assert {event["healed_from"] for event in heals} == {0}
    for heal in (heal for heal in heals if heal["rank"] == 0):
        assert heal["digest"] == digests[heal["step"] - 1]
    state_bytes = sum(heal["bytes"] for heal in heals)
    assert sum(sent["bytes"] for sent in events(cluster, "heal_sent")) > state_bytes > 0
    assert any(line["healed_from"] == [0] for line in ledger(cluster, 1))


def test_an_altered_donor_state_arrives_altered(
    local_cluster: StartCluster, tiny: Path, tmp_path: Path, wait_back: Callable[..., None]
) -> None:
    altered = tmp_path / "altered"
    cluster = local_cluster(
        Path(__file__).with_name("altered_donor.py"),
        args=(str(tiny), "--steps", ENDLESS),
        groups=2,
        ranks=1,
        steps=int(ENDLESS),
        env={"HEADWAY_ALTERED": str(altered)},
    )
    cluster.wait_step(3)
    cluster.kill(1)
    wait_back(cluster, 1)
    cluster.stop()

    (heal,) = [event for event in events(cluster, "heal") if event["step"] >= 3]
    assert heal["digest"] in altered.read_text().split()
    kinds = {violation["kind"] for violation in cluster.report()["violations"]}
    assert any("digest" in kind for kind in kinds)
