"""Donors and joiners in processes of their own, so that they can be killed and frozen."""

import contextlib
import gc
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from transfer_states import plain

from replica.transfer import Donor, DonorSettings, Fetched, fetch

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


def memory(key: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def reset_peak() -> int:
    """Let VmHWM begin again from now; returns the bytes in use."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def serve_large(size: int, pipe: Connection) -> None:
    """Stage a large state and serve it; when asked, tell how much memory that has taken at most."""
    state = plain(1, count=8, size=size)
    with Donor(bind="127.0.0.1") as donor:
        before = reset_peak()
        donor.stage(STEP, state)
        pipe.send(donor.address)
        pipe.recv()
        pipe.send(memory("VmHWM") - before)


def join_large(size: int, address: str, pipe: Connection) -> None:
    """Read a large state in place, and tell how much memory that has taken at most."""
    own = plain(0, count=8, size=size)
    before = reset_peak()
    fetched = isinstance(fetch([address], step=STEP, expected=own, fresh=True, timeout_s=60), Fetched)
    pipe.send((fetched, memory("VmHWM") - before))


def extra_memory(size: int) -> tuple[int, int]:
    """Bytes that a donor and a fresh joiner need at most beyond their own state of 8 tensors of `size`."""
    (donor, donor_end), (joiner, joiner_end) = _CONTEXT.Pipe(), _CONTEXT.Pipe()
    serving = _CONTEXT.Process(target=serve_large, args=(size, donor_end), daemon=True)
    serving.start()
    joining = _CONTEXT.Process(target=join_large, args=(size, donor.recv(), joiner_end), daemon=True)
    joining.start()
    try:
        fetched, joiner_bytes = joiner.recv()
        assert fetched
        donor.send("how much?")
        return donor.recv(), joiner_bytes
    finally:
        _kill(serving)
        _kill(joining)
