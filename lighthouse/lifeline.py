"""A stream that one thread holds open for the life of a rank, and opens again when it breaks."""

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import Enum
from types import TracebackType
from typing import Any

import grpc

from lighthouse.access import OPEN, SERVICE, Access, Entry, entering
from lighthouse.channel import LighthouseError, RefusedError, UnreachableError, error_of
from lighthouse.lag import RoundTimes
from lighthouse.model import Hello, Notice, NoticeKind, Refusal
from protos import lighthouse_pb2 as pb

LOG = logging.getLogger("headway")
PULSE_INTERVAL_S = 1.0
_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 2.0
_JOIN_TIMEOUT_S = 2.0
# After these there is no point in trying again.
_FINAL = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)


class State(Enum):
    """How far a stream has come. The last three are final."""

    CONNECTING = "connecting"
    OPEN = "open"
    UNSUPPORTED = "unsupported"
    REFUSED = "refused"
    LEFT = "left"


class Lifeline(ABC):
    """A context manager that keeps one rank known to the Lighthouse.

    While it is open, the Lighthouse sees the death of this process at once. A pulse goes out about
    every second from a thread of its own, whatever the other threads do. Any thread may call the
    methods. Subclasses say what is sent and what is received.
    """

    method: str
    request_type: Any
    response_type: Any

    def __init__(
        self,
        address: str,
        hello: Hello,
        on_notice: Callable[[Notice], None] | None = None,
        *,
        access: Access = OPEN,
        jitter: Callable[[], float] = random.random,
        round_times: Callable[[], RoundTimes] | None = None,
    ) -> None:
        """`address` is `h:p`. `on_notice` is called on the stream's thread and must return soon.

        `access` is what this end has to show. `jitter` gives numbers in [0, 1) that spread the retries.
        `round_times` tells how the rounds of this rank went, for a pulse; it must not block.
        """
        self._address = address
        self._hello = hello
        self._on_notice = on_notice
        self._access = access
        self._jitter = jitter
        self._round_times = round_times
        self._changed = threading.Condition()
        self._state = State.CONNECTING
        self._has_been_open = False
        self._openings = 0
        self._told_the_end = False
        self._error: grpc.RpcError | None = None
        self._locked_out: LighthouseError | None = None
        self._closing = False
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="headway-attach", daemon=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def refusal(self) -> str | None:
        """Why the Lighthouse has sent this incarnation away for good, or None."""
        with self._changed:
            return self._why_refused() if self._state is State.REFUSED else None

    def close(self) -> None:
        """Break the stream and end the thread. Does nothing the second time."""
        with self._changed:
            self._closing = True
            call = self._call
            self._changed.notify_all()
        if call is not None:
            call.cancel()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)

    # For subclasses; `_changed` is held where they are called from the threads.

    @abstractmethod
    def _begin(self) -> None:
        """A new stream begins: what must be said on it again?"""

    @abstractmethod
    def _next_word(self) -> Any:
        """The next request to be sent, or None if there is nothing to say."""

    @abstractmethod
    def _is_leaving(self) -> bool:
        """Whether this end wants to leave as planned."""

    @abstractmethod
    def _take_opening(self, response: Any) -> bool:
        """Take in the first response; False if it makes no sense."""

    def _wait_until_open(self, timeout_s: float) -> bool:
        """Start, and block until the stream is open. False: the server has no such service.

        Raises RefusedError, LockedOutError where what this end has to show does not fit, or
        UnreachableError when the time is up.
        """
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._state is not State.CONNECTING, timeout_s)
            if self._state is State.UNSUPPORTED:
                return False
            if self._has_been_open:
                return True
            if self._state is State.REFUSED:
                raise self._locked_out or RefusedError(self._why_refused())
        details = _details(self._error)
        known = any(details.startswith(refusal.value) for refusal in Refusal)
        why = f" ({details})" if known else ""
        raise UnreachableError(
            f"the Lighthouse at {self._address} has not answered in {timeout_s:.0f} s{why}"
        )

    # The thread.

    def _run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._closing:
            before = self._openings
            state = self._hold_one_stream()
            with self._changed:
                if state is not State.CONNECTING:
                    self._state = state
                    self._changed.notify_all()
                    break
                backoff_s = _FIRST_BACKOFF_S if self._openings > before else backoff_s
                self._changed.wait_for(lambda: self._closing, backoff_s * (0.5 + self._jitter() / 2))
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
        self._tell_final_refusal()

    def _hold_one_stream(self) -> State:
        """Open it once and read until it ends. CONNECTING: try again."""
        ended = threading.Event()
        try:
            with entering(self._address, self.method, self._access, publish=self._publish) as entry:
                self._hold(entry, ended)
            return State.LEFT if self._is_leaving() else State.CONNECTING
        except grpc.RpcError as error:
            return self._state_after(error)
        except UnreachableError:
            return State.CONNECTING
        except RefusedError as error:
            return self._lock_out(error)
        except Exception:
            # Without its stream this rank would be deaf, and nobody would know: better to try again.
            LOG.exception("the stream to the Lighthouse at %s broke by an error of our own", self._address)
            return State.CONNECTING

    def _hold(self, entry: Entry, ended: threading.Event) -> None:
        method = entry.channel.stream_stream(
            SERVICE + self.method,
            request_serializer=self.request_type.SerializeToString,
            response_deserializer=self.response_type.FromString,
        )
        try:
            call = method(self._outgoing(ended), metadata=entry.metadata)
            self._publish(call)
            self._read_all(call)
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

    def _outgoing(self, ended: threading.Event) -> Iterator[Any]:
        """What this end says on one stream. grpc reads it on a thread of its own."""
        with self._changed:
            first = hello_message(self._hello)
            self._begin()
        yield self.request_type(hello=first)
        yield self.request_type(pulse=self._pulse())
        while True:
            with self._changed:
                word = self._wait_for_word(ended)
                if word is None and (ended.is_set() or self._closing):
                    return
            yield self.request_type(pulse=self._pulse()) if word is None else word
            if word is not None and word.WhichOneof("event") == "goodbye":
                return

    def _pulse(self) -> pb.Pulse:
        if self._round_times is None:
            return pb.Pulse()
        times = self._round_times()
        return pb.Pulse(rounds_s=times.rounds_s, waited_s=times.waited_s)

    def _wait_for_word(self, ended: threading.Event) -> Any:
        """The next word, or None when there was none for the time between two pulses."""
        word: Any = None

        def has_word() -> bool:
            nonlocal word
            if ended.is_set():
                return True
            word = self._next_word()
            return word is not None or self._closing

        self._changed.wait_for(has_word, PULSE_INTERVAL_S)
        return word

    def _read_all(self, call: Any) -> None:
        for number, response in enumerate(call):
            if number == 0:
                with self._changed:
                    if not self._take_opening(response):
                        return
                    self._has_been_open = True
                    self._openings += 1
                    self._state = State.OPEN
                    self._changed.notify_all()
            if response.WhichOneof("event") == "notice":
                self._tell(response.notice)

    def _tell(self, message: pb.Notice) -> None:
        try:
            kind = NoticeKind(int(message.kind))
        except ValueError:
            return  # of a later version: nothing that this one could act on
        self._told_the_end = self._told_the_end or kind in (NoticeKind.SUPERSEDED, NoticeKind.EVICTED)
        if self._on_notice is not None:
            self._on_notice(Notice(kind=kind, quorum_id=message.quorum_id, cause=message.cause))

    def _tell_final_refusal(self) -> None:
        """A rank that may not come back hears it as a notice, if it had not heard it before."""
        refusal = self.refusal
        if not refusal or not self._has_been_open or self._told_the_end or self._on_notice is None:
            return
        superseded = _details(self._error).startswith(Refusal.SUPERSEDED.value)
        kind = NoticeKind.SUPERSEDED if superseded else NoticeKind.EVICTED
        self._on_notice(Notice(kind=kind, cause=refusal))

    def _state_after(self, error: Any) -> State:
        with self._changed:
            self._error = error
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return self._lock_out(error_of(self._address, error))
            if error.code() not in _FINAL:
                return State.CONNECTING
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return State.UNSUPPORTED
            # The goodbye had arrived, only the answer to it was lost.
            left = _details(error).startswith(Refusal.LEFT.value) and self._is_leaving()
            return State.LEFT if left else State.REFUSED

    def _lock_out(self, why: LighthouseError) -> State:
        """Token or certificate do not fit: final at the start.

        Later it is the server that was started with others, by mistake: its job waits until that is
        mended.
        """
        with self._changed:
            if self._has_been_open:
                return State.CONNECTING
            self._locked_out = why
            return State.REFUSED

    def _why_refused(self) -> str:
        if self._locked_out is not None:
            return str(self._locked_out)
        return "" if self._error is None else str(error_of(self._address, self._error))


def _details(error: Any) -> str:
    return error.details() or "" if error is not None else ""


def hello_message(hello: Hello) -> pb.Hello:
    """The first message of a stream."""
    return pb.Hello(
        job=hello.job,
        group=hello.group,
        replica_id=hello.replica_id,
        group_world_size=hello.group_world_size,
        fingerprint=hello.fingerprint,
        platform=hello.platform,
        step=hello.step,
        group_rank=hello.group_rank,
        backstop=hello.backstop,
    )
