"""Process trees on this machine: who belongs to whom, and how to end them and leave none behind.

A process belongs to a tree if it descends from the tree's root, or if its environment carries the
tree's mark: torchrun gives its workers sessions of their own, and a worker whose launcher was killed
has lost its parent, so neither sessions nor parents alone would find them.

The guard of a local cluster is a process of its own, which ends all that carries the cluster's mark
even if the cluster's process is killed with SIGKILL. It has nothing to import from but the standard
library and Headway's own folder, so that it starts at once.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType

from replica import proc

MARK_VARIABLE = "HEADWAY_LOCAL"

_POLL_S = 0.02
_STOPPED_S = 1.0
_GONE_S = 5.0
_ROOT = Path(__file__).parents[2]
_GUARD = (
    "import sys; root, mark = sys.argv[1:]; sys.path.append(root); "
    "from train.cluster.processes import guard; guard(mark)"
)


def environment_of(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty if it is gone or not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read().decode(errors="surrogateescape")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def parents() -> dict[int, int]:
    """Parent of every living process on the machine, by pid. Zombies count as gone."""
    return {pid: each.parent for pid, each in proc.processes().items()}


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return proc.process(pid) is not None


def members(mark: str, root: int | None) -> list[int]:
    """Pids of all living processes of a tree, its root first, then in order of pid.

    They are those that descend from root and those whose mark is `mark` or starts with `mark` and a
    slash. With root None only the mark counts.
    """
    parent_of = parents()
    found = {pid for pid in parent_of if _has_mark(pid, mark)}
    found |= _descendants(parent_of, found | ({root} if root is not None else set()))
    found.discard(os.getpid())
    first = [root] if root is not None and root in parent_of else []
    return first + sorted(found - set(first))


def freeze(mark: str, root: int | None) -> list[int]:
    """Stops a tree with SIGSTOP, its root first, and returns its pids.

    Looks again until it finds nobody new: a process that is stopped cannot start another one, so
    afterwards none can escape. The signal works a moment after it was sent: blocks until it has, at
    most 1 s each time.
    """
    if root is not None:
        send(root, signal.SIGSTOP)
        _wait_until_stopped([root])
    frozen: set[int] = set()
    while True:
        pids = members(mark, root)
        fresh = [pid for pid in pids if pid not in frozen]
        if not fresh:
            return pids
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        _wait_until_stopped(fresh)
        frozen.update(fresh)


def _wait_until_stopped(pids: Collection[int]) -> None:
    deadline = time.monotonic() + _STOPPED_S
    while time.monotonic() < deadline:
        states = [found.state for pid in pids if (found := proc.process(pid)) is not None]
        if all(state in "TtZX" for state in states):
            return
        time.sleep(0.001)


def kill_tree(mark: str, root: int | None, just_before: Callable[[], object] = lambda: None) -> list[int]:
    """Ends a tree with SIGKILL and returns its pids; blocks until all are gone, at most 5 s.

    just_before runs when the tree is collected and stopped, right before the first kill.
    """
    pids = freeze(mark, root)
    just_before()
    for pid in pids:
        send(pid, signal.SIGKILL)
    wait_until_gone(pids, timeout_s=_GONE_S)
    return pids


def kill_until_none(mark: str, timeout_s: float) -> list[int]:
    """Kills every process with the mark, again and again until there is none; returns those left."""
    deadline = time.monotonic() + timeout_s
    while pids := members(mark, None):
        if time.monotonic() > deadline:
            return pids
        kill_tree(mark, None)
    return []


def wait_until_gone(pids: Collection[int], timeout_s: float) -> list[int]:
    """Blocks until none of the processes runs, at most timeout_s; returns those that still do."""
    deadline = time.monotonic() + timeout_s
    left = [pid for pid in pids if is_running(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [pid for pid in left if is_running(pid)]
    return left


def worker_of_rank(pids: Collection[int], rank: int) -> int | None:
    """The process that was started as this rank of its group, None if there is none yet.

    A worker's own children inherit its RANK; the worker is the one whose parent has another.
    """
    wanted = str(rank)
    parent_of = parents()
    for pid in sorted(pids):
        parent = parent_of.get(pid)
        if parent is None or environment_of(pid).get("RANK") != wanted:
            continue
        if environment_of(parent).get("RANK") != wanted:
            return pid
    return None


def send(pid: int, signal_number: int) -> bool:
    """Sends a signal; False if there is no such process any more."""
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return False
    return True


class Guard:
    """A process that ends everything with a mark when this process ends, however it ends.

    A context manager. Leaving it, or close(), ends the guard and with it whatever carries the mark.
    """

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(_ROOT), mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Pid of the guard's process."""
        return self._process.pid

    def close(self) -> None:
        """Ends the guard; blocks until it has ended all that carries the mark, at most 10 s."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=2 * _GONE_S)

    def __enter__(self) -> "Guard":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _has_mark(pid: int, mark: str) -> bool:
    found = environment_of(pid).get(MARK_VARIABLE, "")
    return found == mark or found.startswith(mark + "/")


def _descendants(parent_of: dict[int, int], roots: Collection[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), []):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def guard(mark: str) -> None:
    """What the guard's process does: waits for the end of its standard input, then ends the marked."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guarded = os.getppid()
    # A forked copy of the guarded process may hold the pipe open: look at the parent as well.
    while os.getppid() == guarded:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 1):
            break
    kill_until_none(mark, timeout_s=_GONE_S)
