"""What the end-to-end tests share: a small job, and how to wait for a group to be back."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from train.cluster import processes
from train.cluster.local_cluster import LocalCluster

HERE = Path(__file__).parent
TINY = HERE.parents[1] / "train" / "configs" / "tiny.toml"
ENDLESS = 100_000
BACK_S = 120.0


@pytest.fixture(scope="session")
def tiny() -> Path:
    """Configuration of a job so small that its steps take a fraction of a second."""
    return TINY


@pytest.fixture(scope="session")
def paced() -> dict[str, Any]:
    """Options of a local cluster: the tiny job without an end, in steps that leave the cores idle.

    Groups that are killed are started again at once. To be used where tests wait for such groups.
    """
    return {
        "script": HERE / "paced_trainer.py",
        "args": (str(TINY), "--steps", str(ENDLESS)),
        "job": "tiny",
        "steps": ENDLESS,
        "restart_delay_s": 0.0,
    }


@pytest.fixture(scope="session")
def wait_back() -> Callable[..., None]:
    """wait_back(cluster, group, ...): block until each group commits steps that are new to all."""

    def wait(cluster: LocalCluster, *groups: int) -> None:
        target = cluster.step() + 1
        for group in groups:
            cluster.wait_step(target, group=group, timeout_s=BACK_S)

    return wait


@pytest.fixture(scope="session")
def wait_gone() -> Callable[..., None]:
    """wait_gone(pids, within_s): block until no process of them runs, fail after `within_s`."""

    def wait(pids: Iterable[int], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while left := [pid for pid in pids if processes.is_running(pid)]:
            assert time.monotonic() < deadline, f"still running after {within_s} s: {left}"
            time.sleep(0.05)

    return wait
