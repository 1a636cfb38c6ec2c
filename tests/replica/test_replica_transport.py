"""The heal's transport: the right step or an error, nothing run that a peer sent, no donor that waits."""

import io
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch
from torch.distributed._serialization import _Entry, _streaming_save

from replica.bridge.transport import HealTransport, Sent, tensor_bytes

LIMIT = timedelta(seconds=20)


def state_of(value: float) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.full((300, 50), value),
        "half": torch.full((7,), value, dtype=torch.bfloat16),
        "count": torch.tensor(int(value)),
        "empty": torch.zeros(0, 4),
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


@contextmanager
def transport(*, timeout_s: float = 20.0, sent: Queue[Sent] | None = None) -> Iterator[HealTransport]:
    """A transport whose server is gone at the end of the block."""
    made = HealTransport(timeout_s=timeout_s, advertise_addr="127.0.0.1", on_sent=(sent or Queue[Sent]()).put)
    try:
        yield made
    finally:
        for thread in threading.enumerate():
            if thread.name == "headway-heal":
                thread.join()
        made.shutdown(wait=True)
        made._server.server_close()


@pytest.fixture
def donor() -> Iterator[HealTransport]:
    with transport() as made:
        yield made


@pytest.fixture
def joiner() -> Iterator[HealTransport]:
    with transport() as made:
        yield made


def fetch(joiner: HealTransport, donor: HealTransport, step: int, limit: timedelta = LIMIT) -> Any:
    return joiner.recv_checkpoint(1, donor.metadata(), step, limit)


def test_the_joiner_gets_what_was_staged(donor: HealTransport, joiner: HealTransport) -> None:
    donor.send_checkpoint([1], 7, state_of(3.0), LIMIT)
    assert same(fetch(joiner, donor, 7), state_of(3.0))
    assert joiner.received is not None
    assert (joiner.received.donor_rank, joiner.received.step) == (1, 7)
    assert joiner.received.seconds > 0


def test_several_joiners_get_it(donor: HealTransport, joiner: HealTransport) -> None:
    donor.send_checkpoint([1, 2], 7, state_of(3.0), LIMIT)
    for _ in range(3):
        assert same(fetch(joiner, donor, 7), state_of(3.0))


def test_a_joiner_that_asks_early_waits_for_the_staging(donor: HealTransport, joiner: HealTransport) -> None:
    refused = threading.Event()
    handler = donor._server.RequestHandlerClass

    class Noting(handler):  # type: ignore[misc, valid-type]
        def send_error(self, *arguments: Any) -> None:
            super().send_error(*arguments)
            refused.set()

    donor._server.RequestHandlerClass = Noting
    results: Queue[Any] = Queue()
    asking = threading.Thread(target=lambda: results.put(fetch(joiner, donor, 7)))
    asking.start()
    assert refused.wait(LIMIT.total_seconds())
    donor.send_checkpoint([1], 7, state_of(3.0), LIMIT)
    assert same(results.get(timeout=LIMIT.total_seconds()), state_of(3.0))
    asking.join()


@pytest.mark.parametrize("staged", [6, 8])
def test_another_step_never_comes_through(donor: HealTransport, joiner: HealTransport, staged: int) -> None:
    donor.send_checkpoint([1], staged, state_of(3.0), LIMIT)
    with pytest.raises(TimeoutError, match="step 7"):
        fetch(joiner, donor, 7, timedelta(seconds=0.2))
    assert joiner.received is None


def test_a_newer_staging_replaces_the_older(donor: HealTransport, joiner: HealTransport) -> None:
    donor.send_checkpoint([1], 7, state_of(3.0), LIMIT)
    donor.send_checkpoint([1], 8, state_of(4.0), LIMIT)
    assert same(fetch(joiner, donor, 8), state_of(4.0))
    with pytest.raises(TimeoutError):
        fetch(joiner, donor, 7, timedelta(seconds=0.1))


def test_a_donor_that_is_gone_is_an_error_at_once(joiner: HealTransport) -> None:
    with transport() as donor:
        metadata = donor.metadata()
    with pytest.raises(OSError, match="refused"):
        joiner.recv_checkpoint(1, metadata, 7, LIMIT)


def test_a_donor_never_waits_for_joiners(donor: HealTransport) -> None:
    donor.send_checkpoint([1], 7, state_of(3.0), LIMIT)
    donor.disallow_checkpoint()
    donor.disallow_checkpoint()
    assert not donor._checkpoint_lock.w_locked()


def test_what_was_sent_is_reported_and_is_more_than_the_state(joiner: HealTransport) -> None:
    sent: Queue[Sent] = Queue()
    state = state_of(3.0)
    with transport(sent=sent) as donor:
        donor.send_checkpoint([1], 7, state, LIMIT)
        fetch(joiner, donor, 7)
        report = sent.get(timeout=LIMIT.total_seconds())
    assert report.step == 7
    assert tensor_bytes(state) == 300 * 50 * 4 + 7 * 2 + 8
    assert tensor_bytes(state) < report.bytes < 2 * tensor_bytes(state)
    assert sent.empty()


def test_a_refusal_is_not_reported_as_sent(joiner: HealTransport) -> None:
    sent: Queue[Sent] = Queue()
    with transport(sent=sent) as donor:
        donor.send_checkpoint([1], 6, state_of(3.0), LIMIT)
        with pytest.raises(TimeoutError):
            fetch(joiner, donor, 7, timedelta(seconds=0.1))
        fetch(joiner, donor, 6)
        assert sent.get(timeout=LIMIT.total_seconds()).step == 6
    assert sent.empty()


def test_releasing_frees_the_copy_once_no_joiner_can_want_it(joiner: HealTransport) -> None:
    with transport(timeout_s=0.01) as donor:
        donor.send_checkpoint([1], 7, state_of(3.0), LIMIT)
        donor._staged_at_s -= 1.0
        donor.release()
        assert (donor._state_dict, donor._chunks) == (None, None)
        with pytest.raises(TimeoutError):
            fetch(joiner, donor, 7, timedelta(seconds=0.1))


def test_a_copy_that_may_still_be_wanted_is_kept(donor: HealTransport, joiner: HealTransport) -> None:
    donor.send_checkpoint([1], 7, state_of(3.0), LIMIT)
    donor.release()
    assert same(fetch(joiner, donor, 7), state_of(3.0))


def test_the_advertised_address_is_in_the_metadata() -> None:
    made = HealTransport(timeout_s=1.0, advertise_addr="fe80::1", on_sent=lambda sent: None)
    try:
        assert made.metadata().startswith("http://[fe80::1]:")
        assert made.metadata().endswith("/checkpoint/")
    finally:
        made.shutdown(wait=True)
        made._server.server_close()


class Planted:
    """What would create a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (open, (str(self.path), "w"))


def planted_in_front(path: Path) -> bytes:
    return pickle.dumps(Planted(path))


def planted_in_the_list_of_records(path: Path) -> bytes:
    return pickle.dumps([_Entry(key="data.pkl", is_storage=False, length=1), Planted(path)])


def planted_in_the_state(path: Path) -> bytes:
    stream = io.BytesIO()
    _streaming_save({"weight": torch.zeros(3), "more": Planted(path)}, stream)  # type: ignore[arg-type]
    return stream.getvalue()


def truncated(path: Path) -> bytes:
    stream = io.BytesIO()
    _streaming_save(state_of(3.0), stream)  # type: ignore[arg-type]
    return stream.getvalue()[:-10_000]


def truncated_between_tensors(path: Path) -> bytes:
    stream = io.BytesIO()
    _streaming_save({"weight": torch.ones(100), "other": torch.ones(100)}, stream)  # type: ignore[arg-type]
    whole = stream.getvalue()
    return whole[: whole.rindex(torch.ones(100).numpy().tobytes())]


def noise(path: Path) -> bytes:
    return bytes(range(256)) * 40


def nothing(path: Path) -> bytes:
    return b""


@contextmanager
def fake_donor(answer: bytes) -> Iterator[str]:
    """Serves the same bytes to everybody; gives the metadata to fetch them by."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/checkpoint/"
        finally:
            server.shutdown()
            thread.join()


REFUSALS = (pickle.UnpicklingError, RuntimeError, ValueError, EOFError)


def test_the_planted_payload_would_work(tmp_path: Path) -> None:
    path = tmp_path / "run"
    pickle.loads(planted_in_front(path)).close()
    assert path.exists()


@pytest.mark.parametrize(
    "make",
    [
        planted_in_front,
        planted_in_the_list_of_records,
        planted_in_the_state,
        truncated,
        truncated_between_tensors,
        noise,
        nothing,
    ],
)
def test_what_a_bad_donor_sends_is_an_error_and_runs_nothing(
    joiner: HealTransport, tmp_path: Path, make: Callable[[Path], bytes]
) -> None:
    path = tmp_path / "run"
    with fake_donor(make(path)) as metadata, pytest.raises(REFUSALS):
        joiner.recv_checkpoint(1, metadata, 7, LIMIT)
    assert not path.exists()
    assert joiner.received is None


@pytest.mark.parametrize(
    "request_line", [b"\x00\xff\x16\x03\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"GET /checkpoint/x/full\r\n"]
)
def test_malformed_requests_leave_the_donor_serving(
    donor: HealTransport, joiner: HealTransport, request_line: bytes
) -> None:
    import socket

    donor.send_checkpoint([1], 7, state_of(3.0), LIMIT)
    with socket.create_connection(("127.0.0.1", donor._server.server_address[1]), timeout=10) as attacker:
        attacker.sendall(request_line)
        attacker.shutdown(socket.SHUT_WR)
        while attacker.recv(65536):
            pass
    assert same(fetch(joiner, donor, 7), state_of(3.0))
