"""One child process of a local cluster, with all that descends from it, and its log."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from train.cluster import processes

_TAIL_BYTES = 16_384
# The last two: the line that ends a traceback, and a trainer's own request.
_REASONS = (
    re.compile(r"error: (?P<why>.+)"),
    re.compile(r"(?P<why>[A-Za-z_][\w.]*(Error|Exception)(: .*)?)$"),
    re.compile(r"restart needed: (?P<why>.+)"),
)


class Child:
    """A program that is started again and again under one name, one process at a time.

    Output goes to the end of one log file. Each start puts the mark into the environment, by which
    all its descendants are found. One caller at a time: the cluster's lock sees to that.
    """

    def __init__(self, *, name: str, mark: str, log: Path) -> None:
        self.name = name
        self.mark = f"{mark}/{name}"
        self.log = log
        self.launches = 0
        self.launched_t = 0.0
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the latest launch, None before the first."""
        return self._process.pid if self._process is not None else None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the latest launch, negative for a signal; None while it runs or never ran."""
        return self._process.poll() if self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether the process itself runs; descendants of it may outlive it."""
        return self._process is not None and self._process.poll() is None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts the program in a session of its own, so that a terminal's Ctrl-C does not reach it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                env={**environment, processes.MARK_VARIABLE: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.launches += 1
        self.launched_t = time.time()

    def pids(self) -> list[int]:
        """Pids of the process and of everything that it started and that still runs."""
        return processes.members(self.mark, self._root())

    def kill(self, just_before: Callable[[], object] = lambda: None) -> list[int]:
        """Ends the process and all its descendants with SIGKILL; returns their pids."""
        pids = processes.kill_tree(self.mark, self._root(), just_before)
        self.reap()
        return pids

    def pause(self) -> list[int]:
        """Stops all processes with SIGSTOP."""
        return processes.freeze(self.mark, self._root())

    def resume(self) -> None:
        """Lets all processes go on, whether or not they were stopped."""
        for pid in self.pids():
            processes.send(pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Asks the process to end, with SIGTERM; whatever is stopped goes on, so that it can hear it."""
        root = self._root()
        if root is not None:
            processes.send(root, signal.SIGTERM)
        self.resume()

    def reap(self, timeout_s: float = 5.0) -> None:
        """Waits for the end of a process that was killed, so that no zombie is left."""
        if self._process is not None:
            self._process.wait(timeout_s)

    def output(self) -> str:
        """What the latest launch has written so far, at most the last 16 KiB of it."""
        try:
            with self.log.open("rb") as log:
                return _read_end(log, self._log_start)
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = 15) -> str:
        """The last lines of the latest launch's output."""
        return "\n".join(self.output().splitlines()[-lines:])

    def last_sentence(self) -> str:
        """Why the latest launch ended, in its own words: its last error, else its last line."""
        written = [line.strip() for line in self.output().splitlines() if line.strip()]
        for reason in _REASONS:
            found = [said["why"] for line in written if (said := reason.match(line))]
            if found:
                return str(found[-1])
        return written[-1] if written else "it wrote nothing."

    def _root(self) -> int | None:
        # Of a process that has been waited for, the pid may belong to somebody else by now.
        return self.pid if self.running else None


def _read_end(log: IO[bytes], start: int) -> str:
    end = log.seek(0, os.SEEK_END)
    log.seek(max(start, end - _TAIL_BYTES))
    return log.read().decode(errors="replace")
