"""Process trees: nobody of a tree is overlooked, nobody is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from train.cluster import processes

MARK = "test-mark"
# A process, and below it one that has left both its session and its parent's environment behind.
FAMILY = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def python(code: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.getcwd(), **environment},
        start_new_session=True,
    )


@pytest.fixture
def mark() -> Iterator[str]:
    name = f"{MARK}-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    assert processes.kill_until_none(name, timeout_s=5.0) == []


@pytest.fixture
def family(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    with python(FAMILY, **{processes.MARK_VARIABLE: f"{mark}/group-1"}) as root:
        assert root.stdout is not None
        assert root.stdout.readline() == b"ready\n"
        yield root
        processes.kill_tree(mark, root.pid)


def test_members_are_found_by_descent_and_by_mark(family: subprocess.Popen[bytes], mark: str) -> None:
    pids = processes.members(f"{mark}/group-1", family.pid)
    assert pids[0] == family.pid
    assert len(pids) == 3
    assert all(processes.is_running(pid) for pid in pids)


def test_a_mark_is_not_taken_for_a_longer_one(family: subprocess.Popen[bytes], mark: str) -> None:
    assert processes.members(f"{mark}/group-1", None) != []
    assert processes.members(f"{mark}/group", None) == []
    assert processes.members(f"{mark}/group-11", None) == []


def test_a_killed_tree_is_gone_and_is_stopped_before(family: subprocess.Popen[bytes], mark: str) -> None:
    states: list[str] = []

    def look() -> None:
        for pid in processes.members(mark, family.pid):
            states.append(Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0])

    pids = processes.kill_tree(mark, family.pid, look)
    assert len(pids) == 3
    assert states == ["T"] * 3
    assert not any(processes.is_running(pid) for pid in pids)
    assert family.wait() == -signal.SIGKILL


def test_orphans_are_found_by_mark(family: subprocess.Popen[bytes], mark: str) -> None:
    processes.freeze(mark, family.pid)
    family.kill()
    family.wait()
    left = processes.members(mark, None)
    assert len(left) == 1  # the one with an empty environment cannot be known any more
    assert processes.kill_until_none(mark, timeout_s=5.0) == []
    assert not processes.is_running(left[0])


def test_a_worker_is_not_mistaken_for_its_child(mark: str) -> None:
    with python(FAMILY, **{processes.MARK_VARIABLE: mark, "RANK": "1"}) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        pids = processes.members(mark, worker.pid)
        assert len(pids) == 3
        assert processes.worker_of_rank(pids, 1) == worker.pid
        assert processes.worker_of_rank(pids, 0) is None
        processes.kill_tree(mark, worker.pid)


def test_a_zombie_counts_as_gone() -> None:
    with subprocess.Popen(["true"]) as child:
        assert processes.wait_until_gone([child.pid], timeout_s=5.0) == []
        assert not processes.is_running(child.pid)


def test_waiting_has_a_limit() -> None:
    assert processes.wait_until_gone([os.getpid()], timeout_s=0.05) == [os.getpid()]


def test_no_environment_of_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert processes.environment_of(child.pid) == {}
    assert not processes.send(child.pid, signal.SIGTERM)


GUARDED = """
import os, subprocess, sys, time
from train.cluster import processes
guard = processes.Guard(sys.argv[1]) if len(sys.argv) > 1 else processes.Guard(os.environ["GUARDED_MARK"])
marked = {processes.MARK_VARIABLE: os.environ["GUARDED_MARK"] + "/x"}
child = subprocess.Popen(["sleep", "600"], env=marked, start_new_session=True)
print(guard.pid, child.pid, flush=True)
time.sleep(600)
"""


def test_the_guard_ends_what_a_killed_process_leaves(mark: str) -> None:
    with python(GUARDED, GUARDED_MARK=mark) as guarded:
        assert guarded.stdout is not None
        guard, child = map(int, guarded.stdout.readline().split())
        assert processes.is_running(guard)
        assert processes.is_running(child)
        guarded.kill()
        guarded.wait()
        until(lambda: not processes.is_running(child))
        until(lambda: not processes.is_running(guard))


def test_a_guard_that_is_closed_ends() -> None:
    with processes.Guard(f"{MARK}-none") as guard:
        pid = guard.pid
        assert processes.is_running(pid)
    assert not processes.is_running(pid)
