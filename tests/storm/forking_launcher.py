"""A launcher that forks the ranks of one group from a process that has loaded everything, again and again.

A new Python that loads torch would take seconds of the cores that the donors compute on, and the group
would join more rarely. The group HEADWAY_JOINER is killed once it has committed a few steps, and
forked again at once; after its first life that waits until the file `storm` is in the run's folder.
All other groups get the usual launcher.
"""

import gc
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from replica.ledger import EventKind, EventLog, KillTarget, ledger_path
from train.cluster.follow import GroupProgress

VARIABLE = "HEADWAY_JOINER"
COMMITS = 3
LIFE_S = 60.0
POLL_S = 0.01


def load_everything() -> None:
    """Import what a rank needs; afterwards this process has one thread still, so that it can fork."""
    import replica.group  # noqa: F401
    import train.__main__
    import train.evaluation
    import train.loop  # noqa: F401

    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fork_rank(rank: int, ranks: int, port: int, words: list[str]) -> int:
    """Start a rank with the environment that torchrun would give it; returns its pid."""
    if pid := os.fork():
        return pid
    try:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_RUN_ID="forked")
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
    os._exit(1)


class Joiner:
    """The group that joins, and what is written down of it."""

    def __init__(self, out: Path, group: int, ranks: int, words: list[str]) -> None:
        self._group, self._ranks, self._words = group, ranks, words
        self._progress = GroupProgress(ledger_path(out, group))
        self._events = EventLog(out, group=group)
        self._storm = out / "storm"
        self._lives = 0

    def live(self) -> None:
        """One life: until the group has committed a few steps, and is killed."""
        self._lives += 1
        if self._lives > 1:  # the first launch is on record
            self._events.write(EventKind.GROUP_LAUNCHED, launch=self._lives)
        port, enough = free_port(), self._progress.commits + COMMITS
        pids = [fork_rank(rank, self._ranks, port, self._words) for rank in range(self._ranks)]
        deadline = time.monotonic() + LIFE_S
        while self._progress.commits < enough:
            self._check(pids, deadline)
            time.sleep(POLL_S)
            self._progress.look()
        self._kill(pids)

    def rest(self) -> None:
        """Wait for the storm."""
        while not self._storm.exists():
            time.sleep(POLL_S)

    def _check(self, pids: list[int], deadline: float) -> None:
        for pid in pids:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                sys.exit(f"error: a rank of life {self._lives} ended by itself, status {status}")
        if time.monotonic() > deadline:
            sys.exit(f"error: life {self._lives} did not commit {COMMITS} steps within {LIFE_S:g} s")

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self._progress.look()
        step = self._progress.step
        self._events.write(EventKind.KILL, rank=None, target=KillTarget.GROUP, step=step)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> None:
    """Be the launcher; the arguments are `--nproc-per-node R --max-restarts N SCRIPT ARGUMENTS`."""
    environment, words = os.environ, sys.argv[1:]
    if environment["REPLICA_GROUP_ID"] != environment[VARIABLE]:
        os.execv(sys.executable, [sys.executable, "-m", "replica.launch", *words])
    load_everything()
    out, group = Path(environment["HEADWAY_OUT"]), int(environment["REPLICA_GROUP_ID"])
    joiner = Joiner(out, group, ranks=int(words[1]), words=words[4:])
    while True:
        joiner.live()
        joiner.rest()


if __name__ == "__main__":
    main()
