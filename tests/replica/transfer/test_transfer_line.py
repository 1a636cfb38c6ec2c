"""One connection: whole messages, bounded waits, and no talk with who cannot prove the token."""

import pickle
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replica.transfer.line import (
    FAREWELL_S,
    Line,
    LineDeadError,
    LineError,
    LineMalformedError,
    LineRefusedError,
    LineStalledError,
    admit,
    dial,
    introduce,
)
from replica.transfer.wire import AskManifest, Code, Done, Hello, ManifestIs, Refusal, Welcome, encode

JOINER = b"j" * 16


class Ends:
    """Both ends of a connection."""

    def __init__(self, stall_s: float, whole_s: float = 20.0) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.raw = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        self.line = Line(accepted, stall_s=stall_s, whole_s=whole_s)

    def close(self) -> None:
        self.line.release()
        self.raw.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends(stall_s=20)
    yield made
    made.close()


@pytest.fixture
def hasty() -> Iterator[Ends]:
    made = Ends(stall_s=0.05, whole_s=0.1)
    yield made
    made.close()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run on another thread; the list gets the result or the error."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except (LineError, OSError) as error:  # OSError: a raw end whose other end was closed
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_messages_arrive_in_pieces_and_in_order(ends: Ends) -> None:
    frames = encode(AskManifest(step=3)) + encode(Done(state_id=b"s" * 16))
    for at in range(len(frames)):
        ends.raw.sendall(frames[at : at + 1])
    assert ends.line.receive() == AskManifest(step=3)
    assert ends.line.receive() == Done(state_id=b"s" * 16)


def test_many_pieces_of_memory_are_filled_in_order(ends: Ends) -> None:
    data = bytes(range(256)) * 40
    buffer = bytearray(len(data))
    whole = memoryview(buffer)
    parts = [whole[at : at + 3] for at in range(0, len(data), 3)] + [whole[:0]]
    assert len(parts) > 1024  # more than one call of the kernel takes
    ends.raw.sendall(data)
    ends.line.receive_into(parts)
    assert bytes(buffer) == data


def test_a_large_manifest_is_read_only_where_it_is_expected(ends: Ends) -> None:
    body = b"m" * (3 << 20)
    thread, _ = in_thread(lambda: ends.raw.sendall(encode(ManifestIs(body=body)) * 2))
    assert ends.line.receive(max_manifest_bytes=len(body)) == ManifestIs(body=body)
    with pytest.raises(LineMalformedError, match="at most 0 are taken"):
        ends.line.receive()
    ends.close()
    thread.join()


def test_memory_grows_with_what_comes_and_not_with_what_is_announced(ends: Ends) -> None:
    announced, sent = 256 << 20, 2 << 20
    frame = encode(ManifestIs(body=b""))[:-4] + announced.to_bytes(4)
    thread, _ = in_thread(lambda: (ends.raw.sendall(frame + bytes(sent)), ends.raw.close()))
    tracemalloc.start()
    try:
        with pytest.raises(LineDeadError):
            ends.line.receive(max_manifest_bytes=announced)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    thread.join()
    assert peak < 16 << 20


def test_a_silent_peer_stalls(hasty: Ends) -> None:
    with pytest.raises(LineStalledError):
        hasty.line.receive()


def test_a_peer_that_trickles_stalls_too(hasty: Ends) -> None:
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.01):
            hasty.raw.sendall(b"x")

    thread, _ = in_thread(trickle)
    with pytest.raises(LineStalledError, match="within"):
        hasty.line.receive_into([memoryview(bytearray(1 << 20))])
    stop.set()
    thread.join()


def test_a_long_message_has_one_deadline_for_all_of_its_pieces(hasty: Ends) -> None:
    announced, piece = 64 << 20, bytes(1 << 19)
    stop = threading.Event()

    def trickle() -> None:
        hasty.raw.sendall(encode(ManifestIs(body=b""))[:-4] + announced.to_bytes(4))
        while not stop.wait(0.02):
            hasty.raw.sendall(piece)

    thread, _ = in_thread(trickle)
    with pytest.raises(LineStalledError, match="within"):
        hasty.line.receive(max_manifest_bytes=announced)
    stop.set()
    hasty.close()
    thread.join()


def test_a_last_word_is_not_held_up_by_one_that_talks_on(ends: Ends) -> None:
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.3):
            ends.raw.sendall(b"x")

    thread, _ = in_thread(trickle)
    begun = time.monotonic()
    ends.line.farewell(Refusal(code=Code.MALFORMED, detail="no"))
    assert time.monotonic() - begun < 4 * FAREWELL_S
    stop.set()
    thread.join()


def test_a_peer_that_does_not_read_stalls_the_sender_only_so_long(hasty: Ends) -> None:
    with pytest.raises(LineStalledError):
        hasty.line.send(AskManifest(step=1), memoryview(bytes(64 << 20)))


def test_closing_ends_a_wait_at_once(ends: Ends) -> None:
    thread, outcome = in_thread(ends.line.receive)
    started = time.monotonic()
    ends.line.close()
    thread.join()
    assert isinstance(outcome[0], LineDeadError)
    assert time.monotonic() - started < 10  # it would have waited for 20


def test_what_is_no_message_is_told_and_runs_nothing(ends: Ends, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (tmp_path / "ran",)

    ends.raw.sendall(pickle.dumps(Payload()))
    with pytest.raises(LineMalformedError):
        ends.line.receive()
    assert not (tmp_path / "ran").exists()


def test_a_last_word_arrives_though_not_all_was_read(ends: Ends) -> None:
    ends.raw.sendall(b"n" * 100_000)
    refusal = Refusal(code=Code.MALFORMED, detail="no")
    ends.line.farewell(refusal)
    ends.line.release()
    assert ends.raw.recv(1000, socket.MSG_WAITALL) == encode(refusal)


def test_nobody_there_is_dead() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "not an address", "127.0.0.1:0"):
        with pytest.raises(LineDeadError, match="cannot be reached"):
            dial(address, connect_s=5, stall_s=5, whole_s=5)


@pytest.mark.parametrize(
    ("theirs", "mine", "fits"), [(b"", b"", True), (b"t", b"t", True), (b"t", b"u", False)]
)
def test_both_sides_must_hold_the_token(ends: Ends, theirs: bytes, mine: bytes, fits: bool) -> None:
    donor_side = Line(ends.raw.dup(), stall_s=20, whole_s=20)
    thread, outcome = in_thread(lambda: admit(donor_side, token=theirs))
    if fits:
        introduce(ends.line, token=mine, joiner=JOINER)
    else:
        refuser, refused = in_thread(lambda: introduce(ends.line, token=mine, joiner=JOINER))
    thread.join()
    if fits:
        assert outcome == [JOINER]
    else:
        assert isinstance(outcome[0], LineRefusedError)
        donor_side.farewell(Refusal(code=Code.REFUSED, detail="no"))
        refuser.join()
        assert isinstance(refused[0], LineRefusedError)
    donor_side.release()


def test_a_donor_that_cannot_prove_the_token_is_not_believed(ends: Ends) -> None:
    thread, outcome = in_thread(lambda: introduce(ends.line, token=b"t", joiner=JOINER))
    ends.raw.sendall(encode(Hello(nonce=b"n" * 32)) + encode(Welcome(proof=b"p" * 32)))
    thread.join()
    assert isinstance(outcome[0], LineRefusedError)
    assert "could not prove" in str(outcome[0])


def test_a_donor_that_does_not_greet_is_malformed(ends: Ends) -> None:
    ends.raw.sendall(encode(Welcome(proof=b"p" * 32)))
    with pytest.raises(LineMalformedError, match="hello"):
        introduce(ends.line, token=b"", joiner=JOINER)
