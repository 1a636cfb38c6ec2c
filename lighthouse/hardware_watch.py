"""Watches the GPUs of a host, and has a group drained before one of them fails: `watch-hardware`."""

import argparse
import errno
import math
import os
import stat
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import structlog

from lighthouse.channel import LighthouseError, RefusedError
from lighthouse.hardware import FATAL_XIDS, Alarm, DcgmReader, alarm_in_line
from lighthouse.model import JOB_NAME_RULE, is_job_name

KERNEL_LOG = "/dev/kmsg"
POLL_S = 0.5
DCGM_INTERVAL_S = 5.0
_HTTP_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 8 << 20
_MAX_LINE_BYTES = 64 << 10
_RETRY_S = 2.0
# How long a Lighthouse may be away, and a group be dead, before the drain is given up.
AWAY_LIMIT_S = 600.0
MISSING_LIMIT_S = 60.0

_log: Any = structlog.get_logger("lighthouse")


class WatchError(ValueError):
    """What was to be watched cannot be. Its text is one sentence."""


class Source(Protocol):
    """Something that raises alarms."""

    def look(self) -> list[Alarm]:
        """The alarms since the last look. Returns within a few seconds."""


class KernelLog:
    """What is written into a log from now on: /dev/kmsg, or a file, also one that is rotated."""

    def __init__(self, path: Path, fatal: Iterable[int] = FATAL_XIDS) -> None:
        """Raises WatchError if it cannot be read."""
        self._path = path
        self._fatal = frozenset(fatal)
        self._rest = b""
        try:
            self._file = self._open()
        except OSError as error:
            raise WatchError(
                f"cannot read {path} ({(error.strerror or str(error)).lower()}): run as a user who may, or "
                "give another --kernel-log; `none` with a --dcgm-url is possible, too"
            ) from None
        os.lseek(self._file, 0, os.SEEK_END)

    def __enter__(self) -> "KernelLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def look(self) -> list[Alarm]:
        """The alarms in the lines that were finished since the last look. Does not block."""
        *lines, self._rest = (self._rest + b"".join(self._chunks())).split(b"\n")
        self._rest = self._rest[-_MAX_LINE_BYTES:]
        found = (alarm_in_line(line.decode(errors="replace"), self._fatal) for line in lines)
        return [alarm for alarm in found if alarm is not None]

    def _chunks(self) -> Iterable[bytes]:
        while True:
            try:
                chunk = os.read(self._file, _MAX_LINE_BYTES)
            except BlockingIOError:  # /dev/kmsg has nothing more
                return
            except BrokenPipeError:  # it was overwritten faster than it was read: go on with what is left
                continue
            if chunk:
                yield chunk
            elif not self._follow():
                return

    def _follow(self) -> bool:
        """At the end of a file: whether another one has its name now, which is then read from its start."""
        with suppress(OSError):
            now, ours = os.stat(self._path), os.fstat(self._file)
            if (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino):
                another = self._open()
                os.close(self._file)
                self._file = another
                return True
            if now.st_size < os.lseek(self._file, 0, os.SEEK_CUR):
                os.lseek(self._file, 0, os.SEEK_SET)
                return True
        return False

    def _open(self) -> int:
        file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISDIR(os.fstat(file).st_mode):
            os.close(file)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return file


class Dcgm:
    """The metrics page of NVIDIA's DCGM exporter, read every few seconds. It may come and go."""

    def __init__(
        self, url: str, fatal: Iterable[int] = FATAL_XIDS, *, interval_s: float = DCGM_INTERVAL_S
    ) -> None:
        """Raises WatchError for what is no http:// URL."""
        if not url.startswith(("http://", "https://")):
            raise WatchError(f"malformed --dcgm-url {url!r}: want http://HOST:PORT/metrics")
        self._url = url
        self._reader = DcgmReader(fatal)
        self._interval_s = interval_s
        self._due_s = 0.0
        self._trouble = ""
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def look(self) -> list[Alarm]:
        """The alarms since the last look. Blocks for an answer where one is due."""
        if time.monotonic() < self._due_s:
            return []
        self._due_s = time.monotonic() + self._interval_s
        try:
            with self._open(self._url, timeout=_HTTP_TIMEOUT_S) as answer:
                alarms = self._reader.read(answer.read(_MAX_ANSWER_BYTES).decode(errors="replace"))
        except (OSError, HTTPException, ValueError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("dcgm_not_read", url=self._url, error=self._trouble)
            return []
        self._trouble = ""
        return alarms


def wait_for_alarm(sources: Iterable[Source], sleep: Callable[[float], None] = time.sleep) -> Alarm:
    """The first alarm of any source. Blocks until there is one."""
    watched = tuple(sources)
    while True:
        alarms = [alarm for source in watched for alarm in source.look()]
        for alarm in alarms:
            _log.error("hardware_alarm", device=alarm.device, what=alarm.what)
        if alarms:
            return alarms[0]
        sleep(POLL_S)


def insist(
    drain: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Ask until the group has been told; whether it was.

    Blocks for as long as the Lighthouse is away, 10 minutes at most, and for a minute where the group does
    not live: a group that comes back later than that may have been moved to another host.
    """
    began_s, missing_since_s, said = clock(), math.inf, ""
    while True:
        try:
            if drain():
                return True
            missing_since_s = min(missing_since_s, clock())
            trouble = "the group does not live: it will be asked when it comes back soon"
        except LighthouseError as error:
            trouble = str(error)
        if trouble != said:
            _log.warning("not_drained_yet", why=trouble)
            said = trouble
        if clock() >= min(began_s + AWAY_LIMIT_S, missing_since_s + MISSING_LIMIT_S):
            return False
        sleep(_RETRY_S)


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is watched."""
    parser.add_argument(
        "--kernel-log", default=KERNEL_LOG, metavar="FILE", help=f"the kernel's log, or none ({KERNEL_LOG})"
    )
    parser.add_argument("--dcgm-url", metavar="URL", help="metrics of NVIDIA's DCGM exporter (none)")
    parser.add_argument(
        "--fatal-xids", metavar="N,N,...", help=f"in place of {','.join(map(str, FATAL_XIDS))}"
    )


def watch(chosen: argparse.Namespace, drain: Callable[[], bool], try_out: Callable[[], None]) -> bool:
    """Wait for an alarm on this host, then have the group drained, by `drain`; whether it was told.

    `try_out` asks the Lighthouse whether a drain would be let through. Blocks for as long as all is
    well. Raises WatchError for what cannot be watched, and where the Lighthouse would refuse.
    """
    if not is_job_name(chosen.job) or chosen.group < 0:
        raise WatchError(f"malformed job {chosen.job!r} or group {chosen.group}: want {JOB_NAME_RULE}")
    fatal = _fatal(chosen.fatal_xids)
    with ExitStack() as stack:
        sources: list[Source] = []
        if chosen.kernel_log != "none":
            sources.append(stack.enter_context(KernelLog(Path(chosen.kernel_log), fatal)))
        if chosen.dcgm_url:
            sources.append(Dcgm(chosen.dcgm_url, fatal))
        if not sources:
            raise WatchError("nothing to watch: give a --kernel-log or a --dcgm-url")
        for source in sources:
            source.look()  # sets the mark: only what is new counts
        _make_sure(try_out)
        print(f"watching the GPUs of this host for group {chosen.group} of {chosen.job}", flush=True)
        wait_for_alarm(sources)
    return insist(drain)


def _make_sure(try_out: Callable[[], None]) -> None:
    """Better now than when a GPU fails. A Lighthouse that is away may be back by then."""
    try:
        try_out()
    except RefusedError as error:
        raise WatchError(f"a drain would be refused: {error}") from None
    except LighthouseError as error:
        _log.warning("no_lighthouse_yet", why=str(error))


def _fatal(given: str | None) -> frozenset[int]:
    if given is None:
        return frozenset(FATAL_XIDS)
    numbers = given.split(",")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise WatchError(f"malformed --fatal-xids {given!r}: want whole numbers with commas between them")
    return frozenset(map(int, numbers))
