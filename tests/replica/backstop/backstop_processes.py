"""Starts ranks that save and load, and tells them what to do; none is left when the block ends."""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import backstop_rank

# A server that has torch loaded already forks the ranks: they start in a few milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["backstop_rank"])


def start_server() -> None:
    """Start the server, unless it runs. It knows our modules by PYTHONPATH alone."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


class RankProcess:
    """One rank, seen from the test."""

    def __init__(self) -> None:
        start_server()
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=backstop_rank.main, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, what: str, *arguments: Any, **options: Any) -> None:
        """Let it do something."""
        self.pipe.send((what, arguments, options))

    def answer(self, timeout_s: float = 60.0) -> Any:
        """What came of it. Raises EOFError when the process is dead."""
        assert self.pipe.poll(timeout_s), "no answer"
        found = self.pipe.recv()
        if isinstance(found, Exception):
            raise found
        return found

    def ask(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Let it do something, and wait for what came of it."""
        self.tell(what, *arguments, **options)
        return self.answer()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait_stopped(self) -> None:
        """Wait until it is stopped by a signal, all threads of it."""
        deadline = time.monotonic() + 60
        while "T" not in Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]:
            assert time.monotonic() < deadline, "it did not stop"
            time.sleep(0.005)

    def end(self) -> None:
        """Kill it, stopped or not."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Group:
    """Ranks that have met."""

    def __init__(self, size: int) -> None:
        self.ranks = [RankProcess() for _ in range(size)]
        with tempfile.TemporaryDirectory() as folder:
            for number, rank in enumerate(self.ranks):
                rank.tell("join", folder, number, size)
            for rank in self.ranks:
                rank.answer()

    def ask(self, what: str, *arguments: Any, of: int | None = None, **options: Any) -> list[Any]:
        """Let the first `of` ranks do the same; their answers in order."""
        asked = self.ranks[:of]
        for rank in asked:
            rank.tell(what, *arguments, **options, **({} if of is None else {"of": of}))
        return [rank.answer() for rank in asked]


@contextmanager
def group_of(size: int) -> Iterator[Group]:
    """Ranks that have met, until the end of the block."""
    group = Group(size)
    try:
        yield group
    finally:
        for rank in group.ranks:
            rank.end()
