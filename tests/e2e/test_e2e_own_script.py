"""A model of the user's own: groups that die, one group alone, and scripts that cannot work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cluster.errors import ClusterError
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]
ENDLESS = 100_000

SCRIPT = """
import time

import torch
from torch import nn

import replica


def main():
    with replica.ReplicaGroup.from_env(micro_batches=10) as group:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))
        group.shard(model)
        group.register(model, torch.optim.AdamW(model.parameters(), lr=1e-2), clip_norm=1.0)
        xs = torch.linspace(-3, 3, 1024).unsqueeze(1)
        ys = torch.sin(xs)
        for attempt in group.attempts():
            for micro_batch in attempt.micro_batches():
                rows = list(micro_batch.samples(count=32, dataset_size=len(xs)))
                loss = nn.functional.mse_loss(model(xs[rows]), ys[rows])
                time.sleep(0.02)  # a larger model would take its time
                attempt.backward(loss, inputs=xs[rows])
            attempt.commit()


replica.run(main)
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a script of the user's and returns its path."""

    def write(text: str) -> Path:
        # The commonest name for it, and one that a package of ours has as well.
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


def check(report: dict[str, Any], kills: int) -> None:
    assert report["violations"] == []
    assert report["digests_agree"]
    assert (report["kills"], report["steps_replayed"], report["samples_lost"]) == (kills, 0, 0)


def test_four_groups_survive_many_kills(
    local_cluster: StartCluster, script: Callable[[str], Path], wait_back: Callable[..., None]
) -> None:
    cluster = local_cluster(script(SCRIPT), groups=4, ranks=1, steps=ENDLESS, restart_delay_s=0.0)
    wait_back(cluster, *range(4))
    lone = cluster.pids(2)
    for victims in ((1, 3), (0,)):
        for group in victims:
            cluster.kill(group)
        wait_back(cluster, *victims)
    wait_back(cluster, *range(4))
    assert cluster.pids(2) == lone
    cluster.stop(grace_s=0.0)

    report = cluster.report()
    check(report, kills=3)
    assert report["heals"] >= 3
    assert report["final_loss"] < report["first_loss"]


def test_one_group_without_a_kill_trains_to_the_end(
    local_cluster: StartCluster, script: Callable[[str], Path]
) -> None:
    cluster = local_cluster(script(SCRIPT), groups=1, ranks=1, steps=15)
    report = cluster.wait()
    check(report, kills=0)
    assert (report["steps_committed"], report["steps_discarded"], report["heals"]) == (15, 0, 0)
    assert report["final_loss"] < report["first_loss"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("print('hello')", "none has committed a step: let the script open a replica.ReplicaGroup"),
    ],
)
def test_a_script_that_cannot_work_is_told_so(
    local_cluster: StartCluster,
    script: Callable[[str], Path],
    text: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("train.cluster.supervision._MAX_DELAY_S", 0.0)
    cluster = local_cluster(script(text), groups=1, ranks=1, steps=5, restart_delay_s=0.0)
    with pytest.raises(ClusterError) as caught:
        cluster.wait(timeout_s=100)
    first_line = str(caught.value).splitlines()[0]
    assert says in first_line
