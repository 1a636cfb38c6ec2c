"""How far long work has come: a bar on a terminal, a line now and then elsewhere, on standard error."""

import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

LINE_EVERY_S = 5.0


class ByteProgress:
    """Shows how many of a number of bytes are done; a context manager that clears up after itself.

    what: a word or two on the work. total_bytes: all there is to do.
    """

    def __init__(self, what: str, total_bytes: int, stream: TextIO = sys.stderr) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._stream = stream
        self._due_s = time.monotonic() + LINE_EVERY_S
        self._open = ExitStack()
        self._bar: Progress | None = None

    def advance(self, count: int) -> None:
        """So many bytes more are done."""
        self._done_bytes += count
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], count)
        elif time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + LINE_EVERY_S
            done, total = self._done_bytes / 1e6, self._total_bytes / 1e6
            print(f"{self._what}: {done:.0f} of {total:.0f} MB", file=self._stream, flush=True)

    def __enter__(self) -> Self:
        console = Console(file=self._stream)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = self._open.enter_context(Progress(*columns, console=console, transient=True))
            self._bar.add_task(self._what, total=float(self._total_bytes))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()
