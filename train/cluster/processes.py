"""Process trees on this machine: who belongs to whom, and how to end them and leave none behind.

Only Linux' /proc is read. A process belongs to a tree if it descends from the tree's root, or if its
environment carries the tree's mark: torchrun gives its workers sessions of their own, and a worker
whose launcher was killed has lost its parent, so neither sessions nor parents alone would find them.

Run as a script (`python processes.py MARK`) this file is the guard of a local cluster: it waits until
its standard input ends, which happens even if the cluster's process is killed with SIGKILL, and then
ends every process with the mark. Hence this file imports the standard library only.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from types import TracebackType

MARK_VARIABLE = "HEADWAY_LOCAL"

_POLL_S = 0.02
_GONE_S = 5.0


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
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        parent = _living_parent(int(name))
        if parent is not None:
            found[int(name)] = parent
    return found


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return _living_parent(pid) is not None


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
    afterwards none can escape.
    """
    if root is not None:
        send(root, signal.SIGSTOP)
    frozen: set[int] = set()
    while True:
        pids = members(mark, root)
        fresh = [pid for pid in pids if pid not in frozen]
        if not fresh:
            return pids
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        frozen.update(fresh)


def kill_tree(mark: str, root: int | None, just_before: Callable[[], None] = lambda: None) -> list[int]:
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
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), mark]
        self._process = subprocess.Popen(
            command,
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


def _living_parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command's name stands in brackets and may itself hold brackets and spaces.
    state, parent = text[text.rfind(b")") + 2 :].split(maxsplit=2)[:2]
    return None if state in (b"Z", b"X") else int(parent)


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


def _guard(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guarded = os.getppid()
    # A forked copy of the guarded process may hold the pipe open: look at the parent as well.
    while os.getppid() == guarded:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 1):
            break
    kill_until_none(mark, timeout_s=_GONE_S)


if __name__ == "__main__":
    _guard(sys.argv[1])
