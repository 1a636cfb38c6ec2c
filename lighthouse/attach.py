"""The client's end of a group's stream: held open for life by one thread, made again when it breaks."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import Any

import grpc

from lighthouse.channel import RefusedError, UnreachableError, error_of, open_channel
from lighthouse.model import Hello, Phase, Refusal, StartMode, Welcome
from protos import lighthouse_pb2 as pb

_METHOD = "/headway.lighthouse.v1.LighthouseService/Attach"
_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 2.0
_JOIN_TIMEOUT_S = 2.0
# After these there is no point in trying again.
_FINAL = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)


class _State(Enum):
    CONNECTING = "connecting"
    WELCOMED = "welcomed"
    UNSUPPORTED = "unsupported"
    REFUSED = "refused"
    LEFT = "left"


class AttachStream:
    """A context manager that keeps a group attached.

    While it is open, the Lighthouse sees the death of this process at once. Leaving the context
    without `goodbye` counts as a death. Any thread may call the methods; only `open` and
    `goodbye` block, for the time that they are given.
    """

    def __init__(
        self,
        address: str,
        hello: Hello,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`address` is `h:p`. `jitter` gives numbers in [0, 1) that spread the retries."""
        self._address = address
        self._hello = hello
        self._jitter = jitter
        self._changed = threading.Condition()
        self._state = _State.CONNECTING
        self._welcome: Welcome | None = None
        self._error: grpc.RpcError | None = None
        self._progress: tuple[int, Phase] | None = None
        self._goodbye: pb.Goodbye | None = None
        self._closing = False
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="headway-attach", daemon=True)

    def __enter__(self) -> "AttachStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, timeout_s: float) -> Welcome | None:
        """Attach, and block until the Lighthouse says how to start.

        None: the server does not have this service, as torchft's own lighthouse does not. Raises
        RefusedError, or UnreachableError when the time is up.
        """
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.CONNECTING, timeout_s)
            if self._state is _State.UNSUPPORTED:
                return None
            if self._welcome is not None:
                return self._welcome
        if self._state is _State.REFUSED and self._error is not None:
            raise RefusedError(str(error_of(self._address, self._error)))
        raise UnreachableError(f"the Lighthouse at {self._address} has not answered in {timeout_s:.0f} s")

    @property
    def refusal(self) -> str | None:
        """Why the Lighthouse has sent this incarnation away for good, or None."""
        with self._changed:
            if self._state is not _State.REFUSED or self._error is None:
                return None
            return str(error_of(self._address, self._error))

    def progress(self, step: int, phase: Phase) -> None:
        """Say where the group is. Never blocks: the latest word wins, also across a break."""
        with self._changed:
            self._progress = (step, phase)
            self._hello = replace(self._hello, step=step)
            self._changed.notify_all()

    def goodbye(self, finished: bool, step: int, timeout_s: float = 2.0) -> bool:
        """Leave as planned; `finished`: the job's last step, number `step`, is committed.

        Blocks until the Lighthouse has it, at most `timeout_s`. False: it may not know.
        """
        with self._changed:
            self._goodbye = pb.Goodbye(finished=finished, step=step)
            self._changed.notify_all()
            over = (_State.LEFT, _State.UNSUPPORTED, _State.REFUSED)
            self._changed.wait_for(lambda: self._closing or self._state in over, timeout_s)
            return self._state is _State.LEFT

    def close(self) -> None:
        """Break the stream and end the thread. Does nothing the second time."""
        with self._changed:
            self._closing = True
            call = self._call
            self._changed.notify_all()
        if call is not None:
            call.cancel()
        if self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)

    # The thread.

    def _run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._closing:
            before = self._welcome
            state = self._hold_one_stream()
            with self._changed:
                if state is not _State.CONNECTING:
                    self._state = state
                    self._changed.notify_all()
                    return
                backoff_s = _FIRST_BACKOFF_S if self._welcome is not before else backoff_s
                self._changed.wait_for(lambda: self._closing, backoff_s * (0.5 + self._jitter() / 2))
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def _hold_one_stream(self) -> _State:
        """Attach once, until the stream ends. CONNECTING: try again."""
        ended = threading.Event()
        with open_channel(self._address) as channel:
            method = channel.stream_stream(
                _METHOD,
                request_serializer=pb.AttachRequest.SerializeToString,
                response_deserializer=pb.AttachResponse.FromString,
            )
            try:
                call = method(self._outgoing(ended))
                self._publish(call)
                for response in call:
                    self._read(response)
                return _State.LEFT if self._goodbye is not None else _State.CONNECTING
            except grpc.RpcError as error:
                return self._state_after(error)
            finally:
                ended.set()
                with self._changed:
                    self._changed.notify_all()

    def _publish(self, call: Any) -> None:
        """Let `close` find the call; if it came first, end the call here."""
        with self._changed:
            self._call = call
            if self._closing:
                call.cancel()

    def _outgoing(self, ended: threading.Event) -> Iterator[pb.AttachRequest]:
        """What this end says on one stream. grpc reads it on a thread of its own."""
        with self._changed:
            first = _hello_message(self._hello)
        yield pb.AttachRequest(hello=first)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: ended.is_set() or self._closing or self._has_word())
                if ended.is_set() or (self._closing and self._goodbye is None):
                    return
                goodbye, progress = self._goodbye, self._progress
                self._progress = None
            if goodbye is not None:
                yield pb.AttachRequest(goodbye=goodbye)
                return
            if progress is not None:
                yield pb.AttachRequest(progress=_progress_message(*progress))

    def _has_word(self) -> bool:
        return self._progress is not None or self._goodbye is not None

    def _read(self, response: pb.AttachResponse) -> None:
        if response.WhichOneof("event") != "welcome":
            return
        with self._changed, suppress(ValueError):
            mode = StartMode(response.welcome.start_mode)
            self._welcome = Welcome(start_mode=mode, step=response.welcome.step)
            self._state = _State.WELCOMED
            self._changed.notify_all()

    def _state_after(self, error: Any) -> _State:
        if error.code() not in _FINAL:
            return _State.CONNECTING
        with self._changed:
            self._error = error
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return _State.UNSUPPORTED
            # The goodbye had arrived, only the answer to it was lost.
            left = (error.details() or "").startswith(Refusal.LEFT.value)
            return _State.LEFT if left and self._goodbye is not None else _State.REFUSED


def _hello_message(hello: Hello) -> pb.Hello:
    return pb.Hello(
        job=hello.job,
        group=hello.group,
        replica_id=hello.replica_id,
        group_world_size=hello.group_world_size,
        fingerprint=hello.fingerprint,
        platform=hello.platform,
        step=hello.step,
    )


def _progress_message(step: int, phase: Phase) -> pb.Progress:
    return pb.Progress(step=step, phase=pb.Phase.Name(phase))
