"""The transfer over TLS: the state arrives as ever, in no byte to be read, and only between the job's own."""

import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import torch
from transfer_child import STEP
from transfer_fetching import CHUNK, PATIENCE_S, fail, faults, get
from transfer_proxy import proxy
from transfer_states import plain, same

from lighthouse.tls import Tls, read_tls
from replica.transfer import Cause, Donor, DonorSettings, Fault, FetchSettings
from replica.transfer.donor import TURNED_AWAY_AT_ONCE
from replica.transfer.line import (
    Line,
    LineDeadError,
    LineError,
    LineRefusedError,
    LineStalledError,
    admit,
    introduce,
)
from replica.transfer.tls_line import TlsLine, calling_line, fingerprint, serving_line
from replica.transfer.wire import AskManifest, Refusal

TOKEN = b"the secret of this job"
# The head of a record of 16 KiB that holds the beginning of a ClientHello.
ENDLESS_HELLO = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(16_000)
HASTY = FetchSettings(stall_s=0.3, ask_again_s=0.02)


def tls_of(folder: Path, name: str = "own", ca: str = "ca") -> Tls:
    return read_tls(cert=folder / f"{name}.pem", key=folder / f"{name}.key", ca=folder / f"{ca}.pem")


def donor_of(stack: ExitStack, state: dict[str, torch.Tensor], tls: Tls | None, **settings: float) -> Donor:
    made = DonorSettings(chunk_bytes=CHUNK, **settings)  # type: ignore[arg-type]
    donor = stack.enter_context(Donor(bind="127.0.0.1", token=TOKEN, tls=tls, settings=made))
    donor.stage(STEP, state, joiners=100)
    return donor


@pytest.mark.parametrize("fresh", [True, False])
def test_the_state_arrives_bit_for_bit_from_all_donors(
    stack: ExitStack, certificates: Path, fresh: bool
) -> None:
    tls = tls_of(certificates)
    donors = [donor_of(stack, plain(1, size=1 << 20), tls) for _ in range(2)]
    own = plain(0, size=1 << 20)
    result = get(*(donor.address for donor in donors), own=own, fresh=fresh, token=TOKEN, tls=tls)
    assert same(result.tensors, plain(1, size=1 << 20))
    assert not result.incidents


def test_nothing_of_it_can_be_read_on_the_way(stack: ExitStack, certificates: Path) -> None:
    seen: list[bytes] = []

    def note(at: int, piece: bytes) -> bytes:
        seen.append(piece)
        return piece

    tls, state = tls_of(certificates), plain(1)
    donor = donor_of(stack, state, tls)
    address = stack.enter_context(proxy(donor.address, answers=note, questions=note))
    assert same(get(address, token=TOKEN, tls=tls).tensors, state)
    wire = b"".join(seen)
    assert len(wire) > 8 * 4 * 4096
    for clear in (b"HWXF", b"weight", state["weight.3"].numpy().tobytes()[64:96]):
        assert clear not in wire


@pytest.mark.parametrize(
    ("name", "ca", "says"),
    [
        ("own", "other", "its certificate is refused here"),
        ("foreign", "ca", "it does not know the CA of our"),
    ],
)
def test_another_ca_or_a_foreign_certificate_gets_nothing(
    stack: ExitStack, certificates: Path, name: str, ca: str, says: str
) -> None:
    donor = donor_of(stack, plain(1), tls_of(certificates))
    result = fail(donor.address, token=TOKEN, tls=tls_of(certificates, name, ca))
    assert result.cause is Cause.REFUSED
    assert faults(result) == {(donor.address, Fault.REFUSED)}
    assert says in result.sentence
    assert "\n" not in result.sentence
    assert not result.torn


def test_with_the_right_certificate_and_another_token_it_gets_nothing(
    stack: ExitStack, certificates: Path
) -> None:
    tls = tls_of(certificates)
    donor = donor_of(stack, plain(1), tls)
    result = fail(donor.address, token=b"the secret of another job", tls=tls)
    assert result.cause is Cause.REFUSED
    assert "the token is not that of this job" in result.sentence


def test_a_joiner_in_the_clear_gets_nothing_from_a_donor_with_tls(
    stack: ExitStack, certificates: Path
) -> None:
    donor = donor_of(stack, plain(1), tls_of(certificates), hello_s=0.5)
    result = fail(donor.address, token=TOKEN, settings=HASTY, timeout_s=1.0)
    assert result.cause is Cause.DEADLINE
    assert same(get(donor.address, token=TOKEN, tls=tls_of(certificates)).tensors, plain(1))


def test_a_joiner_with_tls_takes_nothing_from_a_donor_in_the_clear(
    stack: ExitStack, certificates: Path
) -> None:
    donor = donor_of(stack, plain(1), None)
    result = fail(donor.address, token=TOKEN, tls=tls_of(certificates))
    assert result.cause is Cause.REFUSED
    assert "it does not speak TLS" in result.sentence


def test_noise_on_the_port_costs_the_donor_nothing(stack: ExitStack, certificates: Path) -> None:
    tls = tls_of(certificates)
    donor = donor_of(stack, plain(1), tls)
    source = random.Random(1)
    host, _, port = donor.address.rpartition(":")
    for length in (0, 1, 5, 300, 70_000):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(source.randbytes(length))
    assert same(get(donor.address, token=TOKEN, tls=tls).tensors, plain(1))


def test_a_donor_that_falls_silent_is_left_for_another(stack: ExitStack, certificates: Path) -> None:
    tls = tls_of(certificates)
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    donor = donor_of(stack, plain(1), tls)
    mute = f"127.0.0.1:{silent.getsockname()[1]}"
    result = get(mute, donor.address, token=TOKEN, tls=tls, settings=HASTY)
    assert same(result.tensors, plain(1))
    assert (mute, Fault.STALLED) in faults(result)


# One line.


def lines(folder: Path, stall_s: float = 20.0, whole_s: float = 20.0) -> tuple[tuple[Line, Line], ExitStack]:
    """Both ends, a donor's and a joiner's, not secured yet; and what to close."""
    stack, tls = ExitStack(), tls_of(folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        called = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    donor = serving_line(tls)(accepted, stall_s=stall_s, whole_s=whole_s)
    joiner = calling_line(tls)(called, stall_s=stall_s, whole_s=whole_s)
    stack.callback(donor.release)
    stack.callback(joiner.release)
    return (donor, joiner), stack


def shake_hands(donor: Line, joiner: Line) -> None:
    thread = threading.Thread(target=donor.secure)
    thread.start()
    joiner.secure()
    thread.join(PATIENCE_S)


def test_both_ends_know_the_donor_s_certificate(certificates: Path) -> None:
    (donor, joiner), stack = lines(certificates)
    der = ssl.PEM_cert_to_DER_cert((certificates / "own.pem").read_text())
    with stack:
        thread = threading.Thread(target=admit, args=(donor,), kwargs={"token": TOKEN})
        thread.start()
        introduce(joiner, token=TOKEN, joiner=b"j" * 16)
        thread.join(PATIENCE_S)
        assert donor.channel == joiner.channel == fingerprint(der)


def test_a_proof_cannot_be_passed_on_by_one_in_between_with_another_certificate(certificates: Path) -> None:
    (donor, joiner), stack = lines(certificates)
    errors: list[LineError] = []

    def serve() -> None:
        try:
            donor.secure()
            donor.channel = fingerprint(b"another")
            donor.secure = lambda: None  # type: ignore[method-assign]
            admit(donor, token=TOKEN)
        except LineError as error:
            errors.append(error)
            donor.close()

    with stack:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(LineDeadError):
            introduce(joiner, token=TOKEN, joiner=b"j" * 16)
        thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [LineRefusedError]


def test_bytes_that_were_altered_on_the_way_end_the_line_and_no_more(certificates: Path) -> None:
    (donor, joiner), stack = lines(certificates)
    assert isinstance(joiner, TlsLine)
    with stack:
        shake_hands(donor, joiner)
        donor.send(AskManifest(step=STEP))
        assert joiner.receive() == AskManifest(step=STEP)
        joiner._come.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(LineDeadError, match="TLS broke off"):
            joiner.receive()


def test_a_wait_has_an_end(certificates: Path) -> None:
    (donor, _), stack = lines(certificates, stall_s=0.05)
    with stack, pytest.raises(LineStalledError):
        donor.secure()


@contextmanager
def trickle(connected: socket.socket, data: bytes) -> Iterator[None]:
    """Send it byte by byte, meanwhile."""
    stop = threading.Event()

    def send() -> None:
        with suppress(OSError):
            for at in range(len(data)):
                if stop.wait(0.02):
                    return
                connected.sendall(data[at : at + 1])

    thread = threading.Thread(target=send)
    thread.start()
    yield
    stop.set()
    thread.join()


def test_a_handshake_that_trickles_has_an_end(certificates: Path) -> None:
    (donor, joiner), stack = lines(certificates, whole_s=0.3)
    with (
        stack,
        trickle(joiner._socket, ENDLESS_HELLO),
        pytest.raises(LineStalledError, match=r"within 0\.3 s"),
    ):
        donor.secure()


def test_a_record_that_trickles_has_an_end(certificates: Path) -> None:
    (donor, joiner), stack = lines(certificates, whole_s=0.3)
    assert isinstance(joiner, TlsLine)
    with stack:
        shake_hands(donor, joiner)
        joiner._tls.write(bytes(10_000))
        with (
            trickle(joiner._socket, joiner._go.read()),
            pytest.raises(LineStalledError, match=r"within 0\.3 s"),
        ):
            donor.receive_into([memoryview(bytearray(10_000))])


def test_no_joiner_that_trickles_holds_up_others_or_the_end(stack: ExitStack, certificates: Path) -> None:
    """With one place, which by itself is free again only when hello_s is over."""
    tls = tls_of(certificates)
    donor = donor_of(stack, plain(1), tls, hello_s=60.0, max_connections=1)
    host, _, port = donor.address.rpartition(":")
    for _ in range(2 + TURNED_AWAY_AT_ONCE):
        stack.enter_context(trickle(dialled(stack, host, int(port)), ENDLESS_HELLO))
    assert same(get(donor.address, token=TOKEN, tls=tls).tensors, plain(1))
    begun = time.monotonic()
    donor.close()
    assert time.monotonic() - begun < 2


def dialled(stack: ExitStack, host: str, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection((host, port), timeout=PATIENCE_S))


def test_one_too_many_is_told_so_over_tls(stack: ExitStack, certificates: Path) -> None:
    tls = tls_of(certificates)
    donor = donor_of(stack, plain(1), tls, max_connections=1)
    host, _, port = donor.address.rpartition(":")
    known = calling_line(tls)(dialled(stack, host, int(port)), stall_s=PATIENCE_S, whole_s=PATIENCE_S)
    known.secure()
    introduce(known, token=TOKEN, joiner=b"j" * 16)
    known.send(AskManifest(step=STEP + 1))
    assert isinstance(known.receive(), Refusal)  # by which it is known to have been admitted
    result = fail(donor.address, token=TOKEN, tls=tls, timeout_s=1.0)
    assert "all 1 connections are taken" in result.sentence
    known.release()
    assert same(get(donor.address, token=TOKEN, tls=tls).tensors, plain(1))


def test_close_ends_a_wait_of_another_thread_and_nothing_is_read_after_it(certificates: Path) -> None:
    (donor, joiner), stack = lines(certificates)
    errors: list[LineError] = []

    def serve() -> None:
        try:
            donor.secure()
            donor.receive()
        except LineError as error:
            errors.append(error)

    with stack:
        thread = threading.Thread(target=serve)
        thread.start()
        joiner.secure()
        begun = time.monotonic()
        donor.close()
        thread.join(PATIENCE_S)
        assert time.monotonic() - begun < 5
        with pytest.raises(LineError):
            joiner.receive()
    assert [type(error) for error in errors] == [LineDeadError]
