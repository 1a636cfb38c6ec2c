"""Groups with a token heal each other, one with another gets nothing, also where the Lighthouse has none."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replica.ledger import EventKind
from train.cluster.commands import base_environment
from train.cluster.local_cluster import LocalCluster
from train.evidence.violations import ViolationKind
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]
TOKEN, OTHER = "the secret of this job", "the secret of another job"


def of_kind(cluster: LocalCluster, kind: EventKind) -> list[dict[str, Any]]:
    return [event for event in cluster.events if event["kind"] == kind]


def shown(cluster: LocalCluster) -> list[str]:
    """Where a token can be seen: files of the run, arguments and environments of its processes."""
    places = [Path("/proc", str(pid), name) for pid in cluster.pids(0) for name in ("cmdline", "environ")]
    places += [path for path in cluster.out.rglob("*") if path.is_file()]
    assert len(places) > 6
    return [str(path) for path in places if any(t.encode() in path.read_bytes() for t in (TOKEN, OTHER))]


def join(cluster: LocalCluster, config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Start group 1 by hand, and wait for its end."""
    command = ["--nproc-per-node", "1", "--max-restarts", "3", "-m", "train", str(config)]
    command += ["--replica-group-id", "1", "--lighthouse-addr", cluster.lighthouse_address]
    command += ["--steps", str(cluster.settings.facts.steps), "--out", str(cluster.out), *words]
    return subprocess.run(
        [sys.executable, "-m", "replica.launch", *command],
        env=base_environment(os.environ),
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_only_who_holds_the_token_gets_the_state(
    local_cluster: StartCluster,
    paced: dict[str, Any],
    tiny: Path,
    tmp_path: Path,
    wait_back: Callable[..., None],
) -> None:
    token, other = tmp_path / "token", tmp_path / "other"
    token.write_text(TOKEN + "\n")
    token.chmod(0o644)
    other.write_text(OTHER)
    other.chmod(0o600)
    # By the environment, so that the Lighthouse has none and lets everybody join.
    cluster = local_cluster(**paced, groups=2, ranks=1, env={"HEADWAY_TOKEN_FILE": str(token)})
    cluster.wait_step(3)
    cluster.kill(1)
    wait_back(cluster, 1)
    heals = of_kind(cluster, EventKind.HEAL)
    assert [heal["healed_from"] for heal in heals if heal["group"] == 1 and heal["step"] >= 3] == [[0]]

    survivor = cluster.pids(0)
    cluster.kill(1, down_s=1000.0)
    for words in (("--token-file", str(other)), ()):
        ended = join(cluster, tiny, *words)
        said = ended.stderr + ended.stdout
        assert ended.returncode == 4, said[-2000:]
        assert "the token is not that of this job): give all groups the same --token-file" in said
        assert "chmod 600" not in said
        incident = of_kind(cluster, EventKind.HEAL_INCIDENT)[-1]
        assert (incident["group"], incident["donor"], incident["fault"]) == (1, 0, "refused")
    assert len(of_kind(cluster, EventKind.HEAL_INCIDENT)) == 2
    assert len(of_kind(cluster, EventKind.HEAL)) == len(heals)
    cluster.wait_step(cluster.step() + 2)
    assert cluster.pids(0) == survivor
    assert shown(cluster) == []
    logs = "".join(path.read_text() for path in (cluster.out / "logs").iterdir())
    assert f"every user of this host can read {token}: chmod 600 it" in logs
    assert "group 0: the Lighthouse at" in logs
    assert "demands no token: whoever reaches it can join and end this job" in logs
    cluster.stop(grace_s=0.0)
    # That group 1 was started by hand is all that there is to say against the run.
    assert {each["kind"] for each in cluster.report()["violations"]} == {ViolationKind.LIFE_UNLAUNCHED}
