"""The donor's side: stages a copy of the state, and serves its chunks to joiners over TCP."""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from lighthouse.address import HostPort
from lighthouse.tls import Tls
from replica.transfer.line import Line, LineError, LineMalformedError, LineRefusedError, admit
from replica.transfer.manifest import MAX_CHUNK_BYTES, MAX_STEP, MIN_CHUNK_BYTES
from replica.transfer.staging import Staging
from replica.transfer.tls_line import serving_line
from replica.transfer.wire import (
    AskChunk,
    AskManifest,
    ChunkIs,
    Code,
    Done,
    ManifestIs,
    Message,
    Refusal,
)

BACKLOG = 64
# Connections beyond those that are served, which are told so; more than these are cut off without a word.
TURNED_AWAY_AT_ONCE = 16
# No peer can hold up the end of a thread once its connection is shut; what on_served does might.
CLOSE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class DonorSettings:
    """How a donor serves. Times in seconds.

    A copy is freed `hold_s` after it was staged. A joiner must take each step of its introduction within
    `hello_s` and each chunk within `chunk_s`, and may be silent between questions for `idle_s`.
    """

    chunk_bytes: int = 8 << 20
    hold_s: float = 120.0
    hello_s: float = 5.0
    chunk_s: float = 20.0
    idle_s: float = 30.0
    max_connections: int = 64

    def __post_init__(self) -> None:
        """Raises ValueError for settings that cannot work."""
        if not MIN_CHUNK_BYTES <= self.chunk_bytes <= MAX_CHUNK_BYTES:
            raise ValueError(f"chunk_bytes must be {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}")
        if min(self.hold_s, self.hello_s, self.chunk_s, self.idle_s, self.max_connections) <= 0:
            raise ValueError("the times and the number of connections of a donor must be above 0")


@dataclass(frozen=True, kw_only=True)
class Served:
    """What one connection of a joiner took: bytes of chunks, in the time from its first to its last.

    `step` is that of the state which the last chunk belonged to.
    """

    joiner: str
    step: int
    bytes: int
    seconds: float


class Donor:
    """Serves copies of this rank's state. A context manager; threads are named "headway-donor".

    `bind` is the address of the interface to listen on, all interfaces where it is empty;
    `advertise_addr` the host that joiners are told, by default the same. With a `token`, only
    joiners with the same one are served; with `tls` over TLS alone, to holders of a certificate of its CA
    if it has one. `on_served` is called on a thread of the donor's when a
    joiner's connection ends. Raises OSError when it cannot listen there.
    """

    def __init__(
        self,
        *,
        bind: str = "",
        advertise_addr: str = "",
        token: bytes = b"",
        tls: Tls | None = None,
        settings: DonorSettings | None = None,
        on_served: Callable[[Served], None] = lambda served: None,
    ) -> None:
        self._settings = settings or DonorSettings()
        self._token = token
        self._make_line = serving_line(tls)
        self._on_served = on_served
        self._listener = _listen(bind)
        self._listener.setblocking(False)  # a connection that is gone again must not be waited for
        port = self._listener.getsockname()[1]
        self.address = str(HostPort(host=advertise_addr or bind or socket.gethostname(), port=port))
        self._staging = Staging(chunk_bytes=self._settings.chunk_bytes, hold_s=self._settings.hold_s)
        self._lock = threading.Lock()
        self._lines: dict[Line, threading.Thread] = {}
        self._admitted: set[Line] = set()
        self._turned_away: set[Line] = set()
        self._cut_off: dict[Line, threading.Thread] = {}
        self._bell, self._rope = socket.socketpair()
        self._closed = False
        self._accepting = threading.Thread(target=self._accept, name="headway-donor", daemon=True)
        self._accepting.start()

    def stage(self, step: int, tensors: Mapping[str, torch.Tensor], *, joiners: int = 1) -> None:
        """Offer a copy of the tensors, as the state of `step`, to so many joiners.

        Blocks the caller for the copy and for nothing else: checksums are computed on another
        thread, and nobody waits for joiners. The copy is freed when the last of them has it, when
        its time is up, or when the next replaces it. Raises ValueError, naming the tensor, for one
        that cannot travel.
        """
        if not 0 <= step <= MAX_STEP or joiners < 1:
            raise ValueError(f"step {step} cannot be staged for {joiners} joiners")
        self._staging.put(step, tensors, joiners=joiners)

    def close(self) -> None:
        """Stop serving, end all connections and threads, free the copy. Idempotent.

        Blocks for a moment, whatever joiners do; for CLOSE_S at most where `on_served` hangs.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            lines = {**self._lines, **self._cut_off}
        self._rope.close()
        for line in lines:
            line.close()
        until_s = time.monotonic() + CLOSE_S
        for thread in (self._accepting, *lines.values()):
            thread.join(max(0.0, until_s - time.monotonic()))
        self._bell.close()
        self._staging.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with self._listener, selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        self._take_one()

    def _take_one(self) -> None:
        """Accept a connection. All talk with it is for a thread of its own: this one must never wait."""
        try:
            connected, _ = self._listener.accept()
        except OSError:
            # The joiner is gone already, or this process has no descriptor left: not a reason to end.
            time.sleep(0.01)
            return
        settings = self._settings
        try:
            line = self._make_line(connected, stall_s=settings.hello_s, whole_s=settings.hello_s)
        except (LineError, OSError):
            connected.close()
            return
        with self._lock:
            if len(self._lines) >= settings.max_connections:
                self._make_room()
            free = settings.max_connections - len(self._lines)
            if free > -TURNED_AWAY_AT_ONCE and not self._closed:
                talk = self._serve if free > 0 else self._turn_away
                thread = threading.Thread(target=talk, args=(line,), name="headway-donor-line", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread is left in this process
                    thread.start()
                    self._lines[line] = thread
                    if free <= 0:
                        self._turned_away.add(line)
                    return
        line.release()

    def _make_room(self) -> None:
        """Let go of the oldest connection that has not shown yet who it is: it may never do so."""
        spoken_with = self._admitted | self._turned_away
        unknown = next((line for line in self._lines if line not in spoken_with), None)
        if unknown is not None and len(self._cut_off) < self._settings.max_connections + TURNED_AWAY_AT_ONCE:
            self._cut_off[unknown] = self._lines.pop(unknown)
            unknown.close()

    def _admit(self, line: Line) -> None:
        with self._lock:
            self._admitted.add(line)

    def _turn_away(self, line: Line) -> None:
        with contextlib.suppress(LineError), self._closing(line):
            line.secure()
            detail = f"all {self._settings.max_connections} connections are taken"
            line.farewell(Refusal(code=Code.BUSY, detail=detail))

    @contextlib.contextmanager
    def _closing(self, line: Line) -> Iterator[None]:
        """Let go of the connection at the end."""
        try:
            yield
        finally:
            with self._lock:
                self._lines.pop(line, None)
                self._cut_off.pop(line, None)
                self._admitted.discard(line)
                self._turned_away.discard(line)
            line.release()

    def _serve(self, line: Line) -> None:
        visit = _Visit(line, self._staging, self._settings)
        # A joiner that leaves, stalls or talks nonsense costs this connection and nothing else.
        with contextlib.suppress(LineError), self._closing(line):
            visit.run(self._token, lambda: self._admit(line))
        if (served := visit.served()) is not None:
            self._on_served(served)


class _Visit:
    """One joiner's connection, from its first word to its last."""

    def __init__(self, line: Line, staging: Staging, settings: DonorSettings) -> None:
        self._line = line
        self._staging = staging
        self._settings = settings
        self._joiner = b""
        self._bytes = 0
        self._step = -1
        self._first_at_s = self._last_at_s = 0.0

    def run(self, token: bytes, on_admitted: Callable[[], None]) -> None:
        """Answer questions until the joiner leaves. Raises LineError."""
        try:
            self._joiner = admit(self._line, token=token)
            on_admitted()
            self._line.allow_whole(self._settings.chunk_s)
            while True:
                self._line.allow(self._settings.idle_s)
                question = self._line.receive()
                self._line.allow(self._settings.chunk_s)
                self._answer(question)
        except LineRefusedError as error:
            self._line.farewell(Refusal(code=Code.REFUSED, detail=str(error)))
        except LineMalformedError as error:
            self._line.farewell(Refusal(code=Code.MALFORMED, detail=str(error)))

    def served(self) -> Served | None:
        """What it took, or None when that was nothing."""
        if not self._bytes:
            return None
        seconds = self._last_at_s - self._first_at_s
        return Served(joiner=self._joiner.hex(), step=self._step, bytes=self._bytes, seconds=seconds)

    def _answer(self, question: Message) -> None:
        match question:
            case AskManifest():
                body = self._staging.manifest(question.step)
                self._line.send(body if isinstance(body, Refusal) else ManifestIs(body=body))
            case AskChunk():
                self._send_chunk(question)
            case Done():
                self._staging.finished(question.state_id, self._joiner)
            case _:
                raise LineMalformedError(f"{type(question).__name__} is no question")

    def _send_chunk(self, question: AskChunk) -> None:
        data = self._staging.chunk(question.state_id, question.chunk)
        if isinstance(data, Refusal):
            self._line.send(data)
            return
        step = self._staging.step_of(question.state_id)
        self._first_at_s = self._first_at_s or time.monotonic()
        self._line.send(ChunkIs(chunk=question.chunk, nbytes=len(data)), data)
        self._bytes, self._step = self._bytes + len(data), step
        self._last_at_s = time.monotonic()


def _listen(bind: str) -> socket.socket:
    """A listening socket on a free port; on both kinds of addresses where `bind` is empty."""
    if bind:
        family = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((bind, 0), family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("", 0), backlog=BACKLOG)
