"""A proxy between joiner and donor that does harm: to what is asked, and to what is answered."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from lighthouse.address import parse_host_port

# Given where in the stream a piece begins and the piece itself: what is passed on; None ends both.
Harm = Callable[[int, bytes], bytes | None]


def pass_on(at: int, piece: bytes) -> bytes | None:
    """No harm."""
    return piece


class Proxy:
    """Relays connections to `target` (HOST:PORT). `answers` and `questions` see one direction each."""

    def __init__(self, target: str, *, answers: Harm = pass_on, questions: Harm = pass_on) -> None:
        self._target = parse_host_port(target)
        self._answers, self._questions = answers, questions
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection((self._target.host, self._target.port))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink, harm in ((far, near, self._answers), (near, far, self._questions)):
                    threading.Thread(target=relay, args=(source, sink, harm), daemon=True).start()

    def close(self) -> None:
        """End everything that runs through it."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def relay(source: socket.socket, sink: socket.socket, harm: Harm) -> None:
    """Pass bytes from one socket to the other until either ends."""
    at = 0
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 12):
            passed = harm(at, piece)
            if passed is None:
                break
            sink.sendall(passed)
            at += len(piece)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy(target: str, *, answers: Harm = pass_on, questions: Harm = pass_on) -> Iterator[str]:
    """The address of a proxy that is gone at the end of the block."""
    made = Proxy(target, answers=answers, questions=questions)
    try:
        yield made.address
    finally:
        made.close()


def flip_at(where: int) -> Harm:
    """Flip one bit of the byte with this number in each stream."""

    def harm(at: int, piece: bytes) -> bytes:
        if not at <= where < at + len(piece):
            return piece
        changed = bytearray(piece)
        changed[where - at] ^= 4
        return bytes(changed)

    return harm


def once(harm: Harm) -> Harm:
    """Do harm only until it has changed something."""
    used = threading.Event()

    def harm_once(at: int, piece: bytes) -> bytes | None:
        changed = piece if used.is_set() else harm(at, piece)
        if changed != piece:
            used.set()
        return changed

    return harm_once


def cut_at(where: int) -> Harm:
    """End each stream before the byte with this number."""
    return lambda at, piece: piece if at + len(piece) < where else None


def hold_from(where: int, until: threading.Event) -> Harm:
    """Let nothing through from the byte with this number on until told, for a minute at most."""

    def harm(at: int, piece: bytes) -> bytes:
        if at + len(piece) > where:
            until.wait(60)
        return piece

    return harm


def tell_at(where: int, tell: Callable[[], None]) -> Harm:
    """Call `tell` when the byte with this number comes by."""

    def harm(at: int, piece: bytes) -> bytes:
        if at <= where < at + len(piece):
            tell()
        return piece

    return harm


def once_told(where: int, tell: Callable[[], None]) -> Harm:
    """Call `tell` when the byte with this number comes by on the first stream that gets there."""
    told, lock = threading.Event(), threading.Lock()

    def tell_first() -> None:
        with lock:
            if not told.is_set():
                told.set()
                tell()

    return tell_at(where, tell_first)


def replace(old: bytes, new: bytes) -> Harm:
    """Replace some bytes that come in one piece."""
    return lambda at, piece: piece.replace(old, new)
