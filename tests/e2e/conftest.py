"""What the end-to-end tests share: a small job, and how to wait for a group to be back."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from train.cluster.local_cluster import LocalCluster

TINY = Path(__file__).parents[2] / "train" / "configs" / "tiny.toml"
BACK_S = 120.0


@pytest.fixture
def tiny() -> Path:
    """Configuration of a job so small that its steps take a fraction of a second."""
    return TINY


@pytest.fixture
def wait_back() -> Callable[..., None]:
    """wait_back(cluster, group, ...): block until each group commits steps that are new to all."""

    def wait(cluster: LocalCluster, *groups: int) -> None:
        target = cluster.step() + 1
        for group in groups:
            cluster.wait_step(target, group=group, timeout_s=BACK_S)

    return wait


@pytest.fixture
def wait_gone() -> Callable[..., None]:
    """wait_gone(pids, within_s): block until no process of them runs, fail after `within_s`."""

    def wait(pids: Iterable[int], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while left := [pid for pid in pids if _runs(pid)]:
            assert time.monotonic() < deadline, f"still running after {within_s} s: {left}"
            time.sleep(0.05)

    return wait


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
