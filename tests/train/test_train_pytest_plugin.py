"""The public fixture: it starts clusters of a user's script, and ends them with the test."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from train.pytest_plugin import StartCluster, local_cluster

__all__ = ["local_cluster"]

HERE = Path(__file__).parent
LIGHTHOUSE = [sys.executable, "-S", str(HERE / "fake_lighthouse.py")]
FAKES = {
    "script": HERE / "fake_trainer.py",
    "args": ["0.02"],
    "launcher": [sys.executable, "-S", str(HERE / "fake_launcher.py")],
    "restart_delay_s": 0.0,
}


@pytest.fixture(autouse=True)
def _pretended_lighthouse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "train.cluster.lighthouse_child.lighthouse_command",
        lambda settings, port: [*LIGHTHOUSE, f"127.0.0.1:{port}"],
    )


PLAIN_FAKES = {**FAKES, "script": str(FAKES["script"])}
TEST_OF_A_USER = f"""
import train.cluster.lighthouse_child
from train.pytest_plugin import local_cluster

train.cluster.lighthouse_child.lighthouse_command = (
    lambda settings, port: [*{LIGHTHOUSE!a}, f"127.0.0.1:{{port}}"]
)
FAKES = {PLAIN_FAKES!a}
pids = []

def test_mine(local_cluster):
    cluster = local_cluster(**FAKES, steps=9000)
    cluster.wait_step(3, group=0)
    pids.extend(cluster.pids(0))
    assert False, "as it happens"

def test_all_is_gone():
    from train.cluster.processes import is_running
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)
"""


def test_a_test_that_kills_a_group(local_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = local_cluster(**FAKES)  # type: ignore[arg-type]
    cluster.wait_step(10)
    cluster.kill(1)
    report = cluster.wait(timeout_s=20)
    assert report["steps_committed"] == 30
    assert report["kills"] == 1
    assert cluster.out == tmp_path / "cluster-0"
    assert (tmp_path / "cluster-0" / "logs" / "group-1.log").exists()


def test_two_clusters_in_one_test_keep_apart(local_cluster: StartCluster) -> None:
    first = local_cluster(**FAKES, steps=3)  # type: ignore[arg-type]
    second = local_cluster(**FAKES, steps=4)  # type: ignore[arg-type]
    assert first.wait(20)["steps_committed"] == 3
    assert second.wait(20)["steps_committed"] == 4


def test_a_failing_test_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_of_a_user.py").write_text(TEST_OF_A_USER)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            tmp_path / "base",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path.cwd()), "PATH": "/usr/bin:/bin"},
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "as it happens" in done.stdout


def test_loading_the_plugin_costs_nothing() -> None:
    code = """
import sys, train.pytest_plugin
print("torch" in sys.modules, "train.cluster.local_cluster" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"headway": local_cluster.__module__}


def test_without_a_script_the_reference_trainer_is_meant(
    local_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        "train.cluster.local_cluster.LocalCluster.start", lambda self: seen.append(self.settings) or self
    )
    local_cluster(steps=4, overrides={"job.name": "tiny"})
    assert seen[0].script is None
    assert seen[0].facts.job == "tiny"
    assert (seen[0].groups, seen[0].ranks, seen[0].facts.steps) == (2, 1, 4)
