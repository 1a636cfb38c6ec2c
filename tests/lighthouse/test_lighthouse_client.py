"""The small calls of the client: status, forget, waiting for a server."""

import socket
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from test_lighthouse_attach import hello
from threaded import Threaded, threaded

from lighthouse.client import (
    AttachStream,
    RefusedError,
    UnreachableError,
    forget,
    parse_address,
    status,
    wait_until_reachable,
)


@pytest.fixture
def server() -> Iterator[Threaded]:
    with threaded() as running:
        yield running


def test_status_and_forget(server: Threaded) -> None:
    assert status(server.address)["jobs"] == []
    assert not forget(server.address, "job")
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
        assert [job["job"] for job in status(server.address)["jobs"]] == ["job"]
        with pytest.raises(RefusedError, match="groups of job are alive"):
            forget(server.address, "job")
        stream.goodbye(finished=True, step=3)
    server.wait(lambda slot: slot is not None and not slot.lines)
    assert forget(server.address, "job")
    with pytest.raises(ValueError, match="malformed job name 'a b'"):
        forget(server.address, "a b")


def test_nobody_answers() -> None:
    with pytest.raises(UnreachableError, match=r"no Lighthouse answers at 127\.0\.0\.1:1 "):
        status("127.0.0.1:1")


def test_another_kind_of_server() -> None:
    other = grpc.server(futures.ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with pytest.raises(RefusedError, match="is not a Lighthouse of headway"):
            status(f"127.0.0.1:{port}")
    finally:
        other.stop(None).wait()


def test_waiting_for_a_server_that_runs(server: Threaded) -> None:
    wait_until_reachable(parse_address(f"http://{server.address}"), 10.0)


def test_waiting_for_a_server_that_starts_late() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    waits: list[float] = []
    waited = threading.Event()

    def note(waited_s: float) -> None:
        waits.append(waited_s)
        waited.set()

    arguments = (f"127.0.0.1:{port}", 20.0, note)
    waiter = threading.Thread(target=wait_until_reachable, args=arguments)
    waiter.start()
    assert waited.wait(10)
    with threaded(port=port):
        waiter.join(10)
    assert not waiter.is_alive()
    assert waits[0] == pytest.approx(1.0, abs=0.5)


def test_a_socket_that_only_listens_is_not_a_server() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UnreachableError, match=r"no Lighthouse answers at .* \(waited 0 s\)"):
            wait_until_reachable(f"127.0.0.1:{silent.getsockname()[1]}", 0.3)
