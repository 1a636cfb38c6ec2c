"""What the Lighthouse has told this rank, kept where the training thread and its waits see it."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lighthouse.client import Notice, NoticeKind
from replica.errors import ExitCode, RestartError, UserError

LOG = logging.getLogger("headway")
GRACE_S = 5.0
SAY_S = 1.0


class Notices:
    """Written by the stream's thread, read by the training thread.

    A notice that ends this incarnation also starts a clock: a training thread that is stuck, in a
    collective with a frozen sibling for example, cannot act on it, so that after `GRACE_S` the
    process is ended with the exit code that the notice means.
    """

    def __init__(self, *, end_process: bool = True) -> None:
        self._lock = threading.Lock()
        self._over = -1
        self._over_cause = ""
        self._ending: Notice | None = None
        self._wakers: set[threading.Event] = set()
        self._end_process = end_process
        self._drain = False
        self._asking = False
        self._finished = False

    def hear(self, notice: Notice) -> None:
        """Take in a notice and wake whoever waits. Does not block; any thread."""
        with self._lock:
            if notice.kind is NoticeKind.ATTEMPT_OVER and notice.quorum_id > self._over:
                self._over, self._over_cause = notice.quorum_id, notice.cause
            elif notice.kind is NoticeKind.DRAIN:
                self._drain = True
            elif notice.kind is NoticeKind.FINISHED:
                self._finished = True
                self._wait_no_longer()
            elif notice.kind in _EXIT_CODES and self._ending is None:
                self._ending = notice
                self._start_clock(notice)
            for waker in self._wakers:
                waker.set()

    def _start_clock(self, notice: Notice) -> None:
        if self._end_process:
            timer = threading.Timer(GRACE_S, _end, args=(notice,))
            timer.daemon = True
            timer.start()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within the block this rank waits for a quorum. Once the job is finished none will come.

        That wait cannot be interrupted: the process ends with code 0, `GRACE_S` after it was told.
        """
        with self._lock:
            self._asking = True
            if self._finished:
                self._wait_no_longer()
        try:
            yield
        finally:
            with self._lock:
                self._asking = False

    def _wait_no_longer(self) -> None:
        if self._asking and self._end_process:
            timer = threading.Timer(GRACE_S, self._end_if_asking)
            timer.daemon = True
            timer.start()

    def _end_if_asking(self) -> None:
        if self._asking:
            said = "the job is finished: this group has nothing left to do"
            _say_and_end(LOG.info, said, ExitCode.FINISHED)

    def ask_to_drain(self) -> None:
        """Leave at the next step boundary; safe in a signal handler's thread."""
        self._drain = True

    @property
    def draining(self) -> bool:
        """Whether this rank was asked to leave at the end of the step."""
        return self._drain

    def leave(self) -> None:
        """From now on no notice starts a clock: this rank leaves, and may have a save to finish first.

        Its group's next incarnation, which it does not wait for, counts it out. Any thread.
        """
        with self._lock:
            self._end_process = False

    def over(self, quorum_id: int) -> str | None:
        """Why the attempt of this quorum is over, or None while it is not.

        The end of a later one is the end of it too.
        """
        with self._lock:
            if self._ending is not None:
                return self._ending.cause
            return self._over_cause if quorum_id <= self._over else None

    def raise_if_ended(self) -> None:
        """Raise RestartError or UserError when the Lighthouse has counted this incarnation out."""
        with self._lock:
            notice = self._ending
        if notice is None:
            return
        if _EXIT_CODES[notice.kind] is ExitCode.RESTART:
            raise RestartError(_why(notice))
        raise UserError(_why(notice))

    @contextmanager
    def waking(self, event: threading.Event) -> Iterator[None]:
        """Within the block, `event` is set whenever a notice comes."""
        with self._lock:
            self._wakers.add(event)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.discard(event)


def _why(notice: Notice) -> str:
    if _EXIT_CODES[notice.kind] is ExitCode.RESTART:
        return f"the Lighthouse counted this group out: {notice.cause}"
    return f"this incarnation is not wanted any more: {notice.cause}"


def _end(notice: Notice) -> None:
    """The training thread is stuck, and cannot say why it ends."""
    _say_and_end(LOG.error, _why(notice), _EXIT_CODES[notice.kind])


def _say_and_end(say: Callable[[str, str], None], text: str, code: ExitCode) -> None:
    """Whoever reads the log may have stopped to: the process ends all the same."""
    saying = threading.Thread(target=say, args=("%s", text), daemon=True)
    saying.start()
    saying.join(SAY_S)
    os._exit(int(code))


_EXIT_CODES = {
    NoticeKind.EVICTED: ExitCode.RESTART,
    NoticeKind.SUPERSEDED: ExitCode.DO_NOT_RESTART,
}


def drain_on_sigterm(notices: Notices) -> None:
    """Make the first SIGTERM to this process ask for a drain; the second one ends it at once.

    Only the main thread can set signal handlers; on another one nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def on_signal(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        notices.ask_to_drain()

    signal.signal(signal.SIGTERM, on_signal)
