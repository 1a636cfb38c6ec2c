"""Ends a worker whose launcher is gone, so that no orphan holds ports, memory or a GPU."""

import ctypes
import os
import signal
import threading
import time

from replica.errors import ExitCode
from replica.exit import LAUNCHER_PID_VARIABLE

PR_SET_PDEATHSIG = 1
POLL_INTERVAL_S = 1.0


def _ask_kernel() -> None:
    """Have the kernel kill this process when its parent dies; Linux only, silently skipped elsewhere."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return


def _poll(parent_pid: int, launcher_pid: int) -> None:
    while os.getppid() == parent_pid and _runs(launcher_pid):
        time.sleep(POLL_INTERVAL_S)
    os._exit(ExitCode.RESTART)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def die_with_parent() -> None:
    """Tie this process' life to its parent's, from now on.

    The kernel's signal acts at once; a daemon thread that watches the parent's pid covers systems
    without it. Where the launcher has told its pid, a launcher that died before this call is seen
    too. Without a launcher nothing is tied. Does not block.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    # The parent may be a wrapper script that the launcher started.
    parent_pid = os.getppid()
    launcher_pid = int(os.environ.get(LAUNCHER_PID_VARIABLE, parent_pid))
    _ask_kernel()
    if not _runs(launcher_pid):
        os._exit(ExitCode.RESTART)
    pids = (parent_pid, launcher_pid)
    threading.Thread(target=_poll, args=pids, name="headway-watchdog", daemon=True).start()
