"""Without deaths, runs are equal bit for bit; with any number of groups, they use the same samples."""

import json
from pathlib import Path

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e
STEPS = 8


def digests(cluster: LocalCluster) -> list[str]:
    lines = (cluster.out / "ledger" / "group-0.jsonl").read_text().splitlines()
    return [json.loads(line)["digest"] for line in lines]


def losses(cluster: LocalCluster) -> list[float]:
    lines = (cluster.out / "ledger" / "group-0.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def inputs(cluster: LocalCluster) -> dict[tuple[int, int], str]:
    done = [event for event in cluster.events if event["kind"] == "round_done"]
    return {(event["step"], event["round"]): event["input_xxh64"] for event in done}


def test_runs_are_equal(local_cluster: StartCluster, tiny: Path) -> None:
    def run(groups: int) -> LocalCluster:
        cluster = local_cluster(config=tiny, groups=groups, ranks=2, steps=STEPS)
        assert cluster.wait()["violations"] == []
        return cluster

    one, one_again, three, three_again = run(1), run(1), run(3), run(3)
    assert digests(one) == digests(one_again)
    assert digests(three) == digests(three_again)
    assert None not in digests(one) + digests(three)
    # The sums of one and of three groups are added in another order, no more.
    assert losses(one) == pytest.approx(losses(three), rel=1e-4)
    assert inputs(one) == inputs(three)
    assert len(inputs(one)) == STEPS * 6
    # All three took part from the first step on.
    first = json.loads((three.out / "ledger" / "group-0.jsonl").read_text().splitlines()[0])
    assert first["participants"] == [0, 1, 2]
    assert {group for _, group in first["rounds"]} == {0, 1, 2}
