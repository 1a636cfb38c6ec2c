"""The client's end of a rank's stream: rank 0 of a group attaches, every other rank watches."""

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lighthouse.access import OPEN, Access
from lighthouse.lag import RoundTimes
from lighthouse.lifeline import PULSE_INTERVAL_S, Lifeline, State
from lighthouse.model import Hello, Notice, Phase, StartMode, Welcome
from protos import lighthouse_pb2 as pb

_MAX_ABANDONED = 8
_MAX_FAILURES = 16
_MAX_CAUSE_CHARS = 1000


class AttachStream(Lifeline):
    """Keeps a group attached, for its rank 0: reports progress, hears notices.

    Leaving the context without `goodbye` counts as the group's death. Only `open` and `goodbye`
    block, for the time that they are given.
    """

    method = "Attach"
    request_type = pb.AttachRequest
    response_type = pb.AttachResponse

    def __init__(
        self,
        address: str,
        hello: Hello,
        on_notice: Callable[[Notice], None] | None = None,
        *,
        access: Access = OPEN,
        jitter: Callable[[], float] = random.random,
        round_times: Callable[[], RoundTimes] | None = None,
        seconds_by_cause: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """See Lifeline. `seconds_by_cause` tells where the time went, for a pulse; it must not block."""
        super().__init__(address, hello, on_notice, access=access, jitter=jitter, round_times=round_times)
        self._seconds_by_cause = seconds_by_cause
        self._seconds_due_s = 0.0
        self._welcome: Welcome | None = None
        self._progress: pb.Progress | None = None
        self._progress_is_said = True
        # What was abandoned is said again on each new stream: nobody says whether it arrived.
        self._abandoned: deque[pb.Abandoned] = deque(maxlen=_MAX_ABANDONED)
        self._unsaid: deque[pb.Abandoned] = deque(maxlen=_MAX_ABANDONED)
        # Likewise the newest save and the failures; the server counts each only once.
        self._saved: pb.Saved | None = None
        self._saved_at_s = 0.0
        self._saved_is_said = True
        self._failures: deque[pb.SaveFailed] = deque(maxlen=_MAX_FAILURES)
        self._unsaid_failures: deque[pb.SaveFailed] = deque(maxlen=_MAX_FAILURES)
        self._goodbye: pb.Goodbye | None = None

    def __enter__(self) -> "AttachStream":
        return self

    def open(self, timeout_s: float) -> Welcome | None:
        """Attach, and block until the Lighthouse says how to start.

        None: the server does not have this service, as torchft's own lighthouse does not. Raises
        RefusedError, or UnreachableError when the time is up.
        """
        return self._welcome if self._wait_until_open(timeout_s) else None

    def progress(self, step: int, phase: Phase, rounds: int | None = None) -> None:
        """Say where the group is. Never blocks: the latest word wins, also across a break.

        `rounds`, of the compute phase, is how many were dealt to the group in this attempt.
        """
        word = pb.Progress(step=step, phase=pb.Phase.Name(phase), rounds=rounds)
        with self._changed:
            self._progress, self._progress_is_said = word, False
            self._hello = replace(self._hello, step=step)
            self._changed.notify_all()

    def abandon(self, quorum_id: int, cause: str) -> None:
        """Say that this group has given an attempt up, which is then over for all. Never blocks."""
        with self._changed:
            word = pb.Abandoned(quorum_id=quorum_id, cause=cause)
            self._abandoned.append(word)
            self._unsaid.append(word)
            self._changed.notify_all()

    def saved(self, step: int, quorum_id: int, bytes: int, seconds: float) -> None:
        """Say that this group's save of `step` is complete and durable.

        `bytes` is its size, `seconds` how long it took. Never blocks: the newest wins, also across
        a break, and is said before a goodbye.
        """
        word = pb.Saved(step=step, quorum_id=quorum_id, bytes=bytes, seconds=seconds)
        with self._changed:
            self._saved, self._saved_at_s, self._saved_is_said = word, time.monotonic(), False
            self._changed.notify_all()

    def save_failed(self, step: int, cause: str) -> None:
        """Say that this group's save of `step` has failed. Never blocks; the last ones are kept."""
        word = pb.SaveFailed(step=step, cause=cause[:_MAX_CAUSE_CHARS])
        with self._changed:
            self._failures.append(word)
            self._unsaid_failures.append(word)
            self._changed.notify_all()

    def goodbye(self, finished: bool, step: int, timeout_s: float = 2.0, *, may_save_s: float = 0.0) -> bool:
        """Leave as planned; `finished`: the job's last step, number `step`, is committed.

        `may_save_s`: for so long after it the group may still save the state that it leaves behind, and
        whoever starts waits for that, unless `leave` of `lighthouse.client` says that it is done.
        Blocks until the Lighthouse has it, at most `timeout_s`. False: it may not know.
        """
        with self._changed:
            self._goodbye = pb.Goodbye(finished=finished, step=step, may_save_s=may_save_s)
            self._changed.notify_all()
            over = (State.LEFT, State.UNSUPPORTED, State.REFUSED)
            self._changed.wait_for(lambda: self._closing or self._state in over, timeout_s)
            return self._state is State.LEFT

    def _begin(self) -> None:
        self._progress_is_said = self._progress is None
        self._unsaid = deque(self._abandoned, maxlen=_MAX_ABANDONED)
        self._saved_is_said = self._saved is None
        self._unsaid_failures = deque(self._failures, maxlen=_MAX_FAILURES)

    def _next_word(self) -> pb.AttachRequest | None:
        if self._unsaid:
            return pb.AttachRequest(abandoned=self._unsaid.popleft())
        if self._unsaid_failures:
            return pb.AttachRequest(save_failed=self._unsaid_failures.popleft())
        if self._saved is not None and not self._saved_is_said:
            self._saved_is_said = True
            self._saved.age_s = time.monotonic() - self._saved_at_s
            return pb.AttachRequest(saved=self._saved)
        if self._goodbye is not None:
            return pb.AttachRequest(goodbye=self._goodbye)
        if self._progress is not None and not self._progress_is_said:
            self._progress_is_said = True
            return pb.AttachRequest(progress=self._progress)
        return self._account()

    def _account(self) -> pb.AttachRequest | None:
        """A pulse that says where the time went, where one is due: also while there is much else to say."""
        now_s = time.monotonic()
        if self._seconds_by_cause is None or now_s < self._seconds_due_s:
            return None
        self._seconds_due_s = now_s + PULSE_INTERVAL_S
        pulse = self._pulse()
        pulse.seconds.update(self._seconds_by_cause())
        return pb.AttachRequest(pulse=pulse)

    def _is_leaving(self) -> bool:
        return self._goodbye is not None

    def _take_opening(self, response: Any) -> bool:
        with suppress(ValueError):
            mode = StartMode(response.welcome.start_mode)
            self._welcome = Welcome(start_mode=mode, step=response.welcome.step)
            return True
        return False


class WatchStream(Lifeline):
    """Keeps a rank other than 0 known, with the identity of its rank 0; it hears the same notices.

    Leaving the context before rank 0 has said goodbye counts as the group's death.
    """

    method = "Watch"
    request_type = pb.WatchRequest
    response_type = pb.WatchResponse

    def __enter__(self) -> "WatchStream":
        return self

    def open(self, timeout_s: float) -> bool | None:
        """Open it, and block until it is. None: the server does not have this service.

        Raises RefusedError, or UnreachableError when the time is up.
        """
        return True if self._wait_until_open(timeout_s) else None

    def _begin(self) -> None:
        """Nothing was said that must be said again."""

    def _next_word(self) -> None:
        """A rank that watches has nothing to say but its pulse."""

    def _is_leaving(self) -> bool:
        return False

    def _take_opening(self, response: Any) -> bool:
        return response.WhichOneof("event") is None
