"""The folder of a local cluster's run: a fresh one, or one in which an earlier cluster's run goes on."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from replica.errors import UserError
from replica.ledger import EventKind, events_path
from train.cluster.follow import LineFollower


def fresh_folder(job: str) -> Path:
    """A folder for a new run of the job, below the current one; it is not made yet."""
    return Path("out", f"{job}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()


def claim(out: Path) -> None:
    """Makes the folder of a new run. Raises UserError if it cannot, or if it holds another run."""
    if events_path(out).exists() or (out / "ledger").exists():
        raise UserError(f"the folder {out} holds another run: choose another folder or remove it.")
    try:
        for folder in (out / "ledger", out / "logs"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {out} cannot be written ({error.strerror}): choose another.") from None


def hold(out: Path) -> int:
    """Keeps other clusters out of the folder until `let_go` is called with the file descriptor it returns.

    A process that dies lets go of it. Raises UserError where another one holds it.
    """
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise UserError(f"the run in {out} is going on: wait for its end, or end it first.") from None
    except OSError:
        pass  # a file system without locks
    return folder


def let_go(folder: int) -> None:
    """Lets other clusters in again, also where a process that was forked still has the file descriptor."""
    with contextlib.suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_UN)
    os.close(folder)


def take_up(out: Path, job: str) -> None:
    """Checks that the folder holds a run of this job, which can go on. Raises UserError if not."""
    events = LineFollower(events_path(out)).new_lines()
    jobs = [event.get("job") for event in events if event.get("kind") == EventKind.JOB_STARTED]
    if not jobs:
        raise UserError(f"the folder {out} holds no run that could go on: start one without --continue.")
    if jobs[-1] != job:
        raise UserError(f"the folder {out} holds a run of job {jobs[-1]}, not of {job}: name another.")
