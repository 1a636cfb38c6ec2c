"""No orphans: a worker goes when its launcher does, also when the launcher was quicker."""

import os
import signal
import time
from pathlib import Path

import pytest
from children import FOLDER, children, hear

from replica import watchdog

WORKER = str(FOLDER / "tied_worker.py")
LIMIT_S = 10.0


def wait_until_gone(pid: int) -> None:
    """Poll until no living process has this pid, at most LIMIT_S. A zombie is not alive."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "ZX":
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"process {pid} outlived its launcher by {LIMIT_S:g} s")


def test_a_worker_goes_with_its_killed_launcher() -> None:
    with children() as started:
        launcher = started.start("-m", "replica.launch", WORKER)
        word, pid = hear(launcher).split()
        assert word == "tied"
        launcher.kill()
        launcher.wait()
        wait_until_gone(int(pid))


def test_a_launcher_that_died_before_the_worker_was_tied_is_seen_too(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with children() as started:
        launcher = started.start("tied_parent.py", WORKER, "late", str(gate))
        pid = int(hear(launcher))
        launcher.kill()
        launcher.wait()
        gate.write_text("go on")
        wait_until_gone(pid)
        assert launcher.communicate(timeout=LIMIT_S)[0] == ""  # it never got as far as "tied"


def test_without_help_from_the_kernel_the_parent_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, codes = iter([7, 7, 1]), []
    monkeypatch.setattr(watchdog.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(watchdog.os, "_exit", codes.append)
    monkeypatch.setattr(watchdog, "POLL_INTERVAL_S", 0.0)
    watchdog._poll(7, os.getpid())
    assert codes == [3]


def test_a_process_that_nobody_launched_is_tied_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("HEADWAY_LAUNCHER_PID", "1")
    monkeypatch.setattr(watchdog, "_ask_kernel", lambda: pytest.fail("tied"))
    watchdog.die_with_parent()
