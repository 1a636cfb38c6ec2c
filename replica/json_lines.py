"""A file of JSON lines that several processes may append to; what it has no room for is counted, not raised.

A disk that is full or gone takes the record of what happens, and must take nothing else.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LOG = logging.getLogger("headway")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """So many lines of one writer are missing, since `since` (seconds since the epoch), and why."""

    lines: int
    since: float
    reason: str


class JsonLines:
    """Each line is one `write` on an O_APPEND descriptor: lines of different writers never mix.

    Opening, closing: one owner. The rest may be called from any thread.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open for appending, and make file and folder where there is none. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._gap: Gap | None = None
        self._failed = 0
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A writer may have died in the middle of a line, or had no room for all of it.
        self._in_doubt = True

    def append(self, raw: Mapping[str, Any], *, limit_bytes: int | None = None) -> bool:
        """Write a line to the page cache; whether it is in the file. Log the first that is not.

        Raises ValueError for one that is too long, OSError once the file is closed.
        """
        data = json.dumps(raw, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if limit_bytes is not None and len(data) >= limit_bytes:
            raise ValueError(f"a line of {len(data)} bytes for {self.path} is over {limit_bytes} bytes")
        with self._lock:
            reason = self._write(data)
            if reason is None:
                self._recovered()
            else:
                self._lost(reason)
        return reason is None

    def take_gap(self) -> Gap | None:
        """What is missing since this was last asked, for the one who tells of it in another line."""
        with self._lock:
            gap, self._gap = self._gap, None
        return gap

    def put_back(self, gap: Gap) -> None:
        """It could not be told of."""
        with self._lock:
            more = 0 if self._gap is None else self._gap.lines
            self._gap = replace(gap, lines=gap.lines + more)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write(self, data: bytes) -> str | None:
        """Under the lock: why the line is not in the file, or None."""
        reason = "no space is left for a whole line"
        try:
            if self._in_doubt and self._ends_torn():
                data = b"\n" + data
            self._in_doubt = os.write(self._fd, data) < len(data)
        except OSError as error:
            if self._fd < 0:
                raise
            self._in_doubt, reason = True, error.strerror or type(error).__name__
        return reason if self._in_doubt else None

    def _ends_torn(self) -> bool:
        size = os.fstat(self._fd).st_size
        return size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def _lost(self, reason: str) -> None:
        if not self._failed:
            LOG.warning("%s cannot be written (%s): what belongs there is lost", self.path, reason)
        self._failed += 1
        gap = self._gap or Gap(lines=0, since=self._clock(), reason=reason)
        self._gap = replace(gap, lines=gap.lines + 1)

    def _recovered(self) -> None:
        if self._failed:
            LOG.warning("%s can be written again: lines lost: %d", self.path, self._failed)
        self._failed = 0
