"""What a step computes does not depend on who computes it, nor on fault tolerance being there at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]
STEPS = 8
HERE = Path(__file__).parent


def column(out: Path, name: str) -> list[object]:
    """One field of group 0's ledger, line by line."""
    lines = (out / "ledger" / "group-0.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


def inputs(cluster: LocalCluster) -> dict[tuple[int, int], str]:
    done = [event for event in cluster.events if event["kind"] == "round_done"]
    return {(event["step"], event["round"]): event["input_xxh64"] for event in done}


def torchrun(*words: str, env: dict[str, str] | None = None) -> None:
    """Run a script on two ranks, without a Lighthouse, to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1]), **(env or {})}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[:3000]


def alone(out: Path, config: Path, mode: str) -> list[object]:
    """Digests of the trainer without fault tolerance."""
    words = ["-m", "train", str(config), "--lighthouse-addr", "none", "--steps", str(STEPS), "--mode", mode]
    torchrun(*words, "--out", str(out), "--eval.samples", "2")
    return column(out, "digest")


def test_the_number_of_groups_and_fault_tolerance_make_no_difference(
    local_cluster: StartCluster, tiny: Path, tmp_path: Path
) -> None:
    def run(groups: int) -> LocalCluster:
        cluster = local_cluster(config=tiny, groups=groups, ranks=2, steps=STEPS)
        assert cluster.wait()["violations"] == []
        return cluster

    one, three = run(1), run(3)
    digests = column(one.out, "digest")
    assert len(set(digests)) == STEPS
    assert None not in digests
    assert column(three.out, "digest") == digests
    assert alone(tmp_path / "alone", tiny, "exact") == digests
    assert column(one.out, "loss") == column(three.out, "loss")
    assert inputs(one) == inputs(three)
    assert len(inputs(one)) == STEPS * 6
    # All three took part from the first step on.
    first = json.loads((three.out / "ledger" / "group-0.jsonl").read_text().splitlines()[0])
    assert first["participants"] == [0, 1, 2]
    assert {group for _, group in first["rounds"]} == {0, 1, 2}


def test_fast_mode_with_one_group_is_plain_fsdp_and_exact_mode_is_close_to_it(
    tiny: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    torchrun(str(HERE / "plain_fsdp.py"), str(tiny), str(STEPS), str(plain))
    digests = [json.loads(line) for line in plain.read_text().splitlines()]
    assert alone(tmp_path / "fast", tiny, "fast") == digests
    assert alone(tmp_path / "exact", tiny, "exact") != digests
    fast, exact = column(tmp_path / "fast", "loss"), column(tmp_path / "exact", "loss")
    assert fast == pytest.approx(exact, rel=1e-5)


def test_held_out_loss_is_the_same_in_all_groups_and_changes_nothing(
    local_cluster: StartCluster, tiny: Path, tmp_path: Path
) -> None:
    """Data smaller than two steps: it is reshuffled and read on from its start, again and again."""
    text = tmp_path / "small.txt"
    text.write_bytes(Path(__file__).read_bytes()[: 32 * 30])
    overrides = {"data.path": str(text), "eval.every": "3", "eval.samples": "4"}
    cluster = local_cluster(config=tiny, groups=2, ranks=1, steps=6, overrides=overrides)
    assert cluster.wait()["violations"] == []
    told = [event for event in cluster.events if event["kind"] == "evaluation"]
    assert sorted((event["step"], event["group"]) for event in told) == [(3, 0), (3, 1), (6, 0), (6, 1)]
    assert len({event["loss"] for event in told}) == 2
    assert {event["dataset_size"] for event in cluster.events if event["kind"] == "data"} == {29 - 4}
