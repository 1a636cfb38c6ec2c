"""Donors and joiners in processes of their own, so that they can be killed and frozen."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

from transfer_states import plain

from replica.transfer import Donor, DonorSettings, fetch

STEP = 5
# Children are forked from a process that has torch loaded and nothing else.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["replica.transfer", "transfer_states"])


def serve(value: float, chunk_bytes: int, pipe: Connection) -> None:
    """Stage a state and serve it until the pipe closes."""
    with Donor(bind="127.0.0.1", settings=DonorSettings(chunk_bytes=chunk_bytes)) as donor:
        donor.stage(STEP, plain(value), joiners=100)
        pipe.send(donor.address)
        with contextlib.suppress(EOFError):
            pipe.recv()


def join(address: str, pipe: Connection) -> None:
    """Tell that it begins, and fetch."""
    pipe.send(os.getpid())
    fetch([address], step=STEP, expected=plain(0), fresh=True, timeout_s=60)


@contextlib.contextmanager
def joiner_process(address: str) -> Iterator[int]:
    """A joiner that reads from `address`: its process id. It is killed at the end of the block."""
    mine, theirs = _CONTEXT.Pipe()
    child = _CONTEXT.Process(target=join, args=(address, theirs), daemon=True)
    child.start()
    try:
        yield mine.recv()
    finally:
        _kill(child)
        mine.close()
        theirs.close()


@contextlib.contextmanager
def donor_process(value: float, *, chunk_bytes: int) -> Iterator[tuple[str, int]]:
    """A donor that has staged `plain(value)` as STEP: its address and process id."""
    mine, theirs = _CONTEXT.Pipe()
    child = _CONTEXT.Process(target=serve, args=(value, chunk_bytes, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        assert child.pid is not None
        yield mine.recv(), child.pid
    finally:
        _kill(child)
        mine.close()


def _kill(child: multiprocessing.process.BaseProcess) -> None:
    child.kill()
    child.join()
