"""A heal moves the donor's very state: proven with a donor that lies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.pytest_plugin import StartCluster

pytestmark = pytest.mark.e2e


def test_an_altered_donor_state_arrives_altered(
    local_cluster: StartCluster, paced: dict[str, Any], tmp_path: Path, wait_back: Callable[..., None]
) -> None:
    altered = tmp_path / "altered"
    options = {**paced, "script": Path(__file__).with_name("altered_donor.py")}
    cluster = local_cluster(**options, groups=2, ranks=1, env={"HEADWAY_ALTERED": str(altered)})
    cluster.wait_step(3)
    cluster.kill(1)
    wait_back(cluster, 1)
    cluster.stop(grace_s=0.0)

    (heal,) = [event for event in cluster.events if event["kind"] == "heal" and event["step"] >= 3]
    assert heal["digest"] in altered.read_text().split()
    kinds = {violation["kind"] for violation in cluster.report()["violations"]}
    assert any("digest" in kind for kind in kinds)
