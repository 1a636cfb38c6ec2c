"""A donor on its port: it serves whom it should, bears whatever comes, and lets go of what it holds."""

import contextlib
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transfer_child import STEP, joiner_process
from transfer_proxy import once_told, proxy
from transfer_staged import held_bytes, wait_freed
from transfer_states import plain, same

from lighthouse.address import parse_host_port
from replica.transfer import Donor, DonorSettings, Fetched, Served, fetch
from replica.transfer.line import Line, LineDeadError, LineError, dial, introduce
from replica.transfer.manifest import Limits, Manifest, decode
from replica.transfer.wire import (
    HEADER_BYTES,
    AskChunk,
    AskManifest,
    Code,
    Done,
    Kind,
    ManifestIs,
    Message,
    Refusal,
    encode,
)

CHUNK = 1 << 12
PATIENCE_S = 30.0


def donor_with(**options: object) -> Donor:
    chosen = DonorSettings(**({"chunk_bytes": CHUNK} | options))  # type: ignore[arg-type]
    return Donor(bind="127.0.0.1", settings=chosen)


@pytest.fixture
def donor() -> Iterator[Donor]:
    with donor_with() as made:
        yield made


@contextlib.contextmanager
def line_to(donor: Donor, *, joiner: bytes = b"j" * 16, known: bool = True) -> Iterator[Line]:
    """A connection to the donor, introduced if `known`."""
    line = dial(donor.address, connect_s=PATIENCE_S, stall_s=PATIENCE_S, whole_s=PATIENCE_S)
    try:
        if known:
            introduce(line, token=b"", joiner=joiner)
        yield line
    finally:
        line.release()


def ask(line: Line, question: Message) -> Message:
    line.send(question)
    return line.receive(max_manifest_bytes=1 << 20)


def manifest_over(line: Line) -> Manifest:
    """The manifest of STEP, asked for until it is there."""
    while True:
        answer = ask(line, AskManifest(step=STEP))
        if isinstance(answer, ManifestIs):
            manifest = decode(answer.body, Limits(tensors=100, nbytes=1 << 30))
            assert isinstance(manifest, Manifest)
            return manifest
        assert isinstance(answer, Refusal)
        assert answer.code is Code.NOT_STAGED


def fetched(donor: Donor, value: float = 0) -> Fetched:
    own = plain(value)
    result = fetch([donor.address], step=STEP, expected=own, fresh=True, timeout_s=PATIENCE_S)
    assert isinstance(result, Fetched)
    return result


def test_it_serves_its_state_and_frees_it_after_the_last_joiner(donor: Donor) -> None:
    donor.stage(STEP, plain(1), joiners=2)
    assert held_bytes(donor._staging) == 8 * 4 * 4096
    assert same(fetched(donor).tensors, plain(1))
    assert held_bytes(donor._staging)
    assert same(fetched(donor).tensors, plain(1))
    assert wait_freed(donor._staging, PATIENCE_S)


def test_it_frees_its_copy_when_no_joiner_comes() -> None:
    with donor_with(hold_s=0.05) as donor:
        donor.stage(STEP, plain(1))
        assert wait_freed(donor._staging, PATIENCE_S)


def test_a_joiner_gets_what_was_staged_while_the_donor_trains_on(donor: Donor) -> None:
    state = plain(1)
    donor.stage(STEP, state)
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            for tensor in state.values():
                tensor += 1

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        assert same(fetched(donor).tensors, plain(1))
    finally:
        stop.set()
        trainer.join()


def test_staging_waits_for_no_joiner(donor: Donor) -> None:
    donor.stage(STEP, plain(1, count=1, size=8 << 20))
    with line_to(donor) as stalled:
        manifest = manifest_over(stalled)
        for chunk in range(manifest.layout.chunks):
            stalled.send(AskChunk(state_id=manifest.state_id, chunk=chunk))
        # It never reads; the donor's thread is stuck in sending to it, and nothing else is.
        donor.stage(STEP, plain(2), joiners=2)
        assert same(fetched(donor).tensors, plain(2))


@pytest.mark.parametrize("chunks", [0, 8, 24])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_joiner_that_dies_or_freezes_hurts_nobody(donor: Donor, blow: signal.Signals, chunks: int) -> None:
    donor.stage(STEP, plain(1), joiners=2)
    pids: Queue[int] = Queue()
    struck = threading.Event()

    def strike() -> None:
        os.kill(pids.get(), blow)
        struck.set()

    with (
        proxy(donor.address, answers=once_told(200 + chunks * CHUNK // 2, strike)) as address,
        joiner_process(address) as pid,
    ):
        pids.put(pid)
        assert struck.wait(PATIENCE_S)
        assert same(fetched(donor).tensors, plain(1))
        assert held_bytes(donor._staging)  # for the other one, until its time is up
        donor.stage(STEP, plain(2))
        assert same(fetched(donor).tensors, plain(2))


def test_a_joiner_that_does_not_read_is_dropped() -> None:
    served: Queue[Served] = Queue()
    chosen = DonorSettings(chunk_bytes=1 << 25, chunk_s=0.1, idle_s=600.0)
    with Donor(bind="127.0.0.1", settings=chosen, on_served=served.put) as donor:
        donor.stage(STEP, plain(1, count=1, size=8 << 20))
        with line_to(donor) as stalled:
            manifest = manifest_over(stalled)
            stalled.send(AskChunk(state_id=manifest.state_id, chunk=0))
            wait_for_lines(donor, 0)
        assert served.empty()


def wait_for_lines(donor: Donor, count: int) -> None:
    """Until so many connections are open."""
    waiting = threading.Event()
    for _ in range(3000):
        if len(donor._lines) == count:
            return
        waiting.wait(0.01)
    raise AssertionError(f"{len(donor._lines)} connections, not {count}")


def test_what_was_served_is_told() -> None:
    served: Queue[Served] = Queue()
    with Donor(bind="127.0.0.1", on_served=served.put) as donor:
        donor.stage(STEP, plain(1))
        fetched(donor)
        told = served.get(timeout=PATIENCE_S)
    assert told.bytes == 8 * 4 * 4096
    assert told.seconds >= 0
    assert len(told.joiner) == 32


def test_too_many_connections_are_told_so() -> None:
    with donor_with(max_connections=1) as donor, line_to(donor) as first:
        ask(first, AskManifest(step=STEP))  # by its answer it is known to have been admitted
        with line_to(donor, known=False) as second:
            answer = second.receive()
            assert isinstance(answer, Refusal)
            assert answer.code is Code.BUSY
            with pytest.raises(LineDeadError):
                second.receive()


def test_connections_that_say_nothing_keep_no_joiner_out() -> None:
    with donor_with(max_connections=2, hello_s=600.0) as donor, contextlib.ExitStack() as stack:
        donor.stage(STEP, plain(1))
        silent = [stack.enter_context(line_to(donor, known=False)) for _ in range(8)]
        with line_to(donor) as first, line_to(donor) as second:
            for line in (first, second):
                assert isinstance(ask(line, AskManifest(step=STEP)), ManifestIs)
        for line in silent[:-1]:
            with pytest.raises(LineDeadError):
                list(iter(line.receive, None))  # its challenge comes first, perhaps


def test_a_connection_that_says_nothing_is_dropped() -> None:
    with donor_with(hello_s=0.05) as donor, line_to(donor, known=False):
        wait_for_lines(donor, 0)


def test_an_idle_joiner_is_dropped() -> None:
    with donor_with(idle_s=0.05, hello_s=600.0) as donor, line_to(donor):
        wait_for_lines(donor, 0)


def test_questions_out_of_place_are_malformed(donor: Donor) -> None:
    donor.stage(STEP, plain(1))
    with line_to(donor, known=False) as line:
        line.receive()
        answer = ask(line, AskManifest(step=STEP))
        assert isinstance(answer, Refusal)
        assert answer.code is Code.MALFORMED
    with line_to(donor) as line:
        manifest = manifest_over(line)
        answer = ask(line, AskChunk(state_id=manifest.state_id, chunk=2**32 - 1))
        assert isinstance(answer, Refusal)
        assert answer.code is Code.MALFORMED
    with line_to(donor) as line:
        answer = ask(line, Refusal(code=Code.BUSY, detail=""))
        assert isinstance(answer, Refusal)
        assert answer.detail == "Refusal is no question"


def test_done_of_another_state_frees_nothing(donor: Donor) -> None:
    donor.stage(STEP, plain(1))
    with line_to(donor) as line:
        manifest = manifest_over(line)
        line.send(Done(state_id=b"x" * 16))
        assert isinstance(ask(line, AskManifest(step=STEP)), ManifestIs)
        line.send(Done(state_id=manifest.state_id))
        assert wait_freed(donor._staging, PATIENCE_S)


@pytest.mark.parametrize("known", [False, True])
def test_a_planted_pickle_runs_nothing(donor: Donor, tmp_path: Path, known: bool) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (tmp_path / "ran",)

    payload = pickle.dumps(Payload())
    with line_to(donor, known=known) as line:
        if not known:
            line.receive()
        line._socket.sendall(payload)
        line._socket.sendall(encode(ManifestIs(body=payload)))
        answer = line.receive()
        assert isinstance(answer, Refusal)
        assert answer.code is Code.MALFORMED
    donor.stage(STEP, plain(1))
    assert same(fetched(donor).tensors, plain(1))
    assert not (tmp_path / "ran").exists()


HEADS = st.builds(
    lambda kind, nbytes: b"HWXF\x01" + bytes([kind]) + nbytes.to_bytes(4),
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=300) | st.builds(lambda a, b: a + b, HEADS, st.binary(max_size=200)))
def test_junk_costs_its_connection_and_nothing_else(donor: Donor, junk: bytes) -> None:
    donor.stage(STEP, plain(1))
    address = parse_host_port(donor.address)
    for known in (False, True):
        with line_to(donor, known=known) as line:
            with contextlib.suppress(OSError):
                line._socket.sendall(junk)
                line._socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(LineError):
                while True:
                    line.receive(max_manifest_bytes=1 << 20)
    with socket.create_connection((address.host, address.port)) as fresh:
        assert len(fresh.recv(HEADER_BYTES, socket.MSG_WAITALL)) == HEADER_BYTES
    assert held_bytes(donor._staging)


def test_closing_ends_every_thread_and_connection() -> None:
    before = set(threading.enumerate())
    with donor_with() as donor:
        donor.stage(STEP, plain(1))
        with line_to(donor) as line:
            manifest_over(line)
            donor.close()
            with pytest.raises(LineError):
                ask(line, AskManifest(step=STEP))
    assert set(threading.enumerate()) <= before
    with pytest.raises(LineDeadError):
        dial(donor.address, connect_s=5, stall_s=5, whole_s=5)


def test_it_listens_where_it_is_told_and_advertises_what_it_is_told() -> None:
    with Donor(bind="127.0.0.1", advertise_addr="node7.example") as donor:
        host = parse_host_port(donor.address)
        assert host.host == "node7.example"
        with socket.create_connection(("127.0.0.1", host.port)), pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", host.port))
    with Donor(advertise_addr="::1") as donor:
        assert donor.address.startswith("[::1]:")
    with pytest.raises(OSError, match="assign"):
        Donor(bind="192.0.2.1")


def test_bad_arguments_are_refused_in_words(donor: Donor) -> None:
    with pytest.raises(ValueError, match="odd is a"):
        donor.stage(STEP, {"odd": torch.eye(2).to_sparse()})
    with pytest.raises(ValueError, match="step -1"):
        donor.stage(-1, plain(1))
    with pytest.raises(ValueError, match="0 joiners"):
        donor.stage(1, plain(1), joiners=0)
    with pytest.raises(ValueError, match="chunk_bytes"):
        DonorSettings(chunk_bytes=1)
    with pytest.raises(ValueError, match="above 0"):
        DonorSettings(hold_s=0)
