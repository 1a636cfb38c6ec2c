"""A heal moves the donor's very state, or none: proven with donors that lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replica.ledger import EventKind
from train.evidence.files import read_evidence
from train.evidence.history import commits
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


def test_a_donor_that_sends_wrong_bytes_is_named_and_the_state_comes_from_the_other(
    local_cluster: StartCluster, paced: dict[str, Any], wait_back: Callable[..., None]
) -> None:
    options = {**paced, "script": Path(__file__).with_name("lying_donor.py")}
    cluster = local_cluster(**options, groups=3, ranks=1)
    cluster.wait_step(3)
    cluster.kill(2)
    wait_back(cluster, 2)
    cluster.stop(grace_s=0.0)

    (heal,) = [event for event in cluster.events if event["kind"] == "heal" and event["step"] >= 3]
    assert (heal["group"], heal["healed_from"]) == (2, [1])
    incidents = [event for event in cluster.events if event["kind"] == "heal_incident"]
    assert {(each["group"], each["donor"], each["fault"]) for each in incidents} == {(2, 0, "wrong_bytes")}
    assert len(incidents) >= 2  # after the second lie it is asked no more
    assert all(each["tensor"].split(".")[0] in ("parameter", "optimizer", "buffer") for each in incidents)
    assert cluster.report()["violations"] == []


def test_a_joiner_that_gets_no_whole_state_ends_with_code_3_and_holds_nobody_up(
    local_cluster: StartCluster, paced: dict[str, Any], wait_back: Callable[..., None]
) -> None:
    options = {**paced, "script": Path(__file__).with_name("lying_donor.py")}
    cluster = local_cluster(**options, groups=2, ranks=1)
    cluster.wait_step(3)
    survivor = cluster.pids(0)
    cluster.kill(1)
    step = cluster.step()

    def exits() -> list[int]:
        events = [event for event in cluster.events if event["kind"] == "group_exited"]
        return [event["code"] for event in events if event["group"] == 1]

    while 3 not in exits():
        step += 1
        cluster.wait_step(step, group=0)  # fails when group 0 stands still
    wait_back(cluster, 0)
    assert cluster.pids(0) == survivor
    cluster.stop(grace_s=0.0)
    evidence = read_evidence(cluster.out)
    assert len({line.incarnation for line in commits(evidence.ledgers[1])}) == 1  # the first, at the start
    reasons = [event.values["reason"] for event in evidence.of(EventKind.HEAL_FAILED)]
    assert reasons
    assert all("no donor is left" in reason for reason in reasons)
    assert cluster.report()["violations"] == []
