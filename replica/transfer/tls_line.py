"""A connection between donor and joiner over TLS 1.3, on which both show a certificate of the job's CA."""

import contextlib
import functools
import hashlib
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from lighthouse.tls import Tls, sentence_of
from replica.transfer.line import (
    Line,
    LineDeadError,
    LineError,
    LineMaker,
    LineRefusedError,
    as_line_errors,
)

T = TypeVar("T")
# What is encrypted, sent and received at a time: some records, so that there are few calls of the kernel.
PIECE_BYTES = 256 << 10


class TlsLine(Line):
    """See Line. `channel` is a hash of the donor's certificate, known to both ends once it is secured.

    TLS works on buffers, between which and the socket this class carries the bytes: whole records at a
    time, under the deadlines of a Line.
    """

    def __init__(
        self,
        connected: socket.socket,
        *,
        context: ssl.SSLContext,
        certificate: bytes | None,
        stall_s: float,
        whole_s: float,
    ) -> None:
        """`certificate`: the hash of the donor's own, None on the joiner's side."""
        super().__init__(connected, stall_s=stall_s, whole_s=whole_s)
        self._certificate = certificate
        self._come, self._go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._come, self._go, server_side=certificate is not None)
        self._raw = bytearray(PIECE_BYTES)
        self._heard = False

    def secure(self) -> None:
        """Agree on keys, and check the other side's certificate. Blocks for a round trip."""
        self._until_s = time.monotonic() + self._whole_s
        try:
            self._until_done(self._tls.do_handshake)
        finally:
            with contextlib.suppress(LineError):
                self._flush()  # also the word with which the other side is refused
        self.channel = self._certificate or fingerprint(self._tls.getpeercert(binary_form=True) or b"")

    def _put(self, piece: memoryview) -> int:
        sent = self._until_done(lambda: self._tls.write(piece[:PIECE_BYTES]))
        self._flush()
        return sent

    def _take(self, parts: Sequence[memoryview]) -> int:
        part = parts[0]
        taken: int = self._until_done(lambda: self._tls.read(len(part), part))  # type: ignore[assignment]
        self._heard = True
        return taken

    def _until_done(self, act: Callable[[], T]) -> T:
        """Do something that may need more bytes from the other side first."""
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                raise LineDeadError("it closed the connection") from None
            except ssl.SSLError as error:
                if self._heard:
                    raise LineDeadError(f"TLS broke off: {sentence_of(error)}") from None
                # A donor looks at the joiner's certificate only after the joiner's handshake is done.
                raise LineRefusedError(sentence_of(error)) from None

    def _feed(self) -> None:
        with as_line_errors():
            got = self._socket.recv_into(self._raw)
        if got:
            self._come.write(memoryview(self._raw)[:got])
            self._moved()
        else:
            self._come.write_eof()

    def _flush(self) -> None:
        rest = memoryview(self._go.read())
        while rest:
            rest = rest[super()._put(rest) :]
            if rest:
                self._moved()


def serving_line(tls: Tls | None) -> LineMaker:
    """What makes a donor's lines."""
    if tls is None:
        return Line
    own = fingerprint(ssl.PEM_cert_to_DER_cert(_first_certificate(tls.cert or b"")))
    return functools.partial(TlsLine, context=tls.serving, certificate=own)


def calling_line(tls: Tls | None) -> LineMaker:
    """What makes a joiner's lines."""
    if tls is None:
        return Line
    return functools.partial(TlsLine, context=tls.calling, certificate=None)


def fingerprint(certificate: bytes) -> bytes:
    """SHA-256 of a certificate in DER form (32 bytes)."""
    return hashlib.sha256(certificate).digest()


def _first_certificate(pem: bytes) -> str:
    """The one that a file shows as its own: a chain may follow, and words may stand around it."""
    text = pem.decode(errors="replace")
    end = ssl.PEM_FOOTER
    return text[text.index(ssl.PEM_HEADER) : text.index(end) + len(end)]
