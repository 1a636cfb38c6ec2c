"""One connection between donor and joiner: whole messages and raw bytes over a socket, with deadlines.

Blocking calls of the kernel do the work: one call moves a whole chunk, without the interpreter's
lock. Another thread ends them with `close`.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from lighthouse.address import parse_host_port
from replica.transfer.wire import (
    HEADER_BYTES,
    JOINER_BYTES,
    NONCE_BYTES,
    Auth,
    Code,
    Hello,
    Malformed,
    Message,
    Refusal,
    Said,
    Welcome,
    decode,
    decode_header,
    donor_proof,
    encode,
    joiner_proof,
    proves,
)

# Linux takes at most this many pieces of memory in one call.
MAX_PIECES = 1024
FAREWELL_S = 0.5
_NOTHING = memoryview(b"")
_TIMEVAL = struct.Struct("@ll")


class LineError(Exception):
    """This connection is of no more use. Its text says why."""


class LineDeadError(LineError):
    """The other side closed or broke it, or cannot be reached."""


class LineStalledError(LineError):
    """Nothing, or too little, came or went within the time allowed."""


class LineMalformedError(LineError):
    """The other side said something that it must not say."""


class LineRefusedError(LineError):
    """The donor will not talk to this joiner, or it cannot prove that it is of this job."""


class Line:
    """A connected socket. One thread talks; `close` may be called from any.

    `stall_s` bounds each wait for progress. `whole_s` bounds one message or chunk as a whole, however
    its bytes trickle: from the call on where something is sent, from the first bytes on where something
    is received. No method blocks for longer than twice the one and once the other; all raise LineError.
    """

    def __init__(self, connected: socket.socket, *, stall_s: float, whole_s: float) -> None:
        self._socket = connected
        # What this line is secured with; empty for nothing.
        self.channel = b""
        self._whole_s = whole_s
        # When what is under way must be done; None while no byte of it has moved.
        self._until_s: float | None = None
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.allow(stall_s)

    def secure(self) -> None:
        """Before the first word: agree on keys, where this line is one of the kind."""

    def allow(self, stall_s: float) -> None:
        """From now on, wait this long for progress. At least a millisecond."""
        whole = max(0.001, stall_s)
        packed = _TIMEVAL.pack(int(whole), int(whole % 1 * 1e6))
        with as_line_errors():
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, packed)

    def allow_whole(self, whole_s: float) -> None:
        """From now on, one message or chunk may take this long."""
        self._whole_s = whole_s

    def send(self, message: Message, data: memoryview = _NOTHING) -> None:
        """Send one message, and raw bytes after it."""
        self._until_s = time.monotonic() + self._whole_s
        for piece in (memoryview(encode(message)), data):
            sent = 0
            while sent < len(piece):
                sent += self._put(piece[sent:])
                if sent < len(piece):
                    self._moved()

    def farewell(self, message: Message) -> None:
        """Send a last message so that it arrives, even if the other side has sent more than was read.

        Closing with unread bytes would reset the connection; for FAREWELL_S they are read and dropped.
        """
        self.send(message)
        self.allow(FAREWELL_S)
        until_s = time.monotonic() + FAREWELL_S
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(1 << 14) and time.monotonic() < until_s:
                pass

    def receive(self, *, max_manifest_bytes: int = 0) -> Message:
        """Receive one message."""
        self._until_s = None
        head = decode_header(self._read(HEADER_BYTES), max_manifest_bytes=max_manifest_bytes)
        if isinstance(head, Malformed):
            raise LineMalformedError(head.reason)
        message = decode(head, self._read(head.nbytes))
        if isinstance(message, Malformed):
            raise LineMalformedError(message.reason)
        return message

    def receive_into(self, parts: Sequence[memoryview]) -> None:
        """Fill all parts, in order."""
        self._until_s = None
        self._fill(parts)

    def close(self) -> None:
        """End the connection, and whatever any thread waits for on it. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the socket back to the system: for the thread that talks, when it talks no more."""
        self._socket.close()

    def _fill(self, parts: Sequence[memoryview]) -> None:
        rest = [part for part in parts if len(part)]
        while rest:
            got = self._take(rest)
            if got == 0:
                raise LineDeadError("it closed the connection")
            while rest and got >= len(rest[0]):
                got -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][got:]
            self._moved()

    def _moved(self) -> None:
        """Some bytes have come or gone: see that they do not do so for ever."""
        now = time.monotonic()
        if self._until_s is None:
            self._until_s = now + self._whole_s
        elif now > self._until_s:
            raise LineStalledError(f"it was not done within {self._whole_s:g} s")

    def _put(self, piece: memoryview) -> int:
        """Send some of it; how many bytes."""
        with as_line_errors():
            return self._socket.send(piece)

    def _take(self, parts: Sequence[memoryview]) -> int:
        """Receive into the parts, as much as can be had at once; how many bytes, 0 at the end."""
        with as_line_errors():
            return self._socket.recvmsg_into(parts[:MAX_PIECES], 0, socket.MSG_WAITALL)[0]

    def _read(self, nbytes: int) -> bytes:
        # Memory grows with what really comes, not with what a header announces.
        if nbytes <= 1 << 20:
            buffer = bytearray(nbytes)
            self._fill([memoryview(buffer)])
            return bytes(buffer)
        return b"".join(self._read(min(1 << 20, nbytes - at)) for at in range(0, nbytes, 1 << 20))


class LineMaker(Protocol):
    """Makes a line of a connected socket, as `Line` itself does. Raises LineError."""

    def __call__(self, connected: socket.socket, *, stall_s: float, whole_s: float) -> Line:
        """The line; see `Line`."""


def dial(address: str, *, connect_s: float, stall_s: float, whole_s: float, make: LineMaker = Line) -> Line:
    """Connect to HOST:PORT. Blocks at most `connect_s`, and a name server. Raises LineDeadError."""
    try:
        target = parse_host_port(address, lowest_port=1)
        connected = socket.create_connection((target.host, target.port), timeout=connect_s)
    except (ValueError, OSError) as error:
        raise LineDeadError(f"it cannot be reached: {error}") from None
    return make(connected, stall_s=stall_s, whole_s=whole_s)


def introduce(line: Line, *, token: bytes, joiner: bytes) -> None:
    """The joiner's half of the opening: both sides prove that they hold the token."""
    line.secure()
    hello = line.receive()
    if isinstance(hello, Refusal):
        raise _refused(hello)
    if not isinstance(hello, Hello):
        raise LineMalformedError("it did not say hello first")
    nonce = os.urandom(NONCE_BYTES)
    said = Said(donor_nonce=hello.nonce, joiner_nonce=nonce, joiner=joiner, channel=line.channel)
    proof = joiner_proof(token, said)
    line.send(Auth(joiner=joiner, nonce=nonce, proof=proof))
    welcome = line.receive()
    if isinstance(welcome, Refusal):
        raise _refused(welcome)
    expected = donor_proof(token, said)
    if not isinstance(welcome, Welcome) or not proves(welcome.proof, expected):
        raise LineRefusedError("it could not prove that it holds the token of this job")


def admit(line: Line, *, token: bytes) -> bytes:
    """The donor's half of the opening. Returns who the joiner is. Raises LineError."""
    line.secure()
    nonce = os.urandom(NONCE_BYTES)
    line.send(Hello(nonce=nonce))
    auth = line.receive()
    if not isinstance(auth, Auth):
        raise LineMalformedError("the first message must be the proof of the token")
    said = Said(donor_nonce=nonce, joiner_nonce=auth.nonce, joiner=auth.joiner, channel=line.channel)
    expected = joiner_proof(token, said)
    if not proves(auth.proof, expected):
        raise LineRefusedError("the token is not that of this job")
    line.send(Welcome(proof=donor_proof(token, said)))
    return auth.joiner


def new_joiner() -> bytes:
    """A name for one joiner, so that a donor can tell joiners apart."""
    return os.urandom(JOINER_BYTES)


def _refused(refusal: Refusal) -> LineError:
    if refusal.code is Code.REFUSED:
        return LineRefusedError(refusal.detail)
    return LineDeadError(f"it is {refusal.code.name.lower()}: {refusal.detail}")


@contextlib.contextmanager
def as_line_errors() -> Iterator[None]:
    """Turn what a socket raises into a LineError."""
    try:
        yield
    except BlockingIOError:
        raise LineStalledError("nothing moved for too long") from None
    except OSError as error:
        raise LineDeadError(error.strerror or str(error)) from None
