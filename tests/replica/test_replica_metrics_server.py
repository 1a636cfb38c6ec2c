"""The metrics of a group over HTTP: they can be read; slow clients and a port in use hold nobody up."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from lighthouse.address import HostPort
from replica import metrics_server
from replica.config import GroupConfig
from replica.errors import UserError
from replica.metrics import GroupMetrics
from replica.metrics_server import MetricsServer, serve_metrics

open_url = build_opener(ProxyHandler({})).open
ANY = HostPort(host="127.0.0.1", port=0)


def counts(group: int = 2) -> GroupMetrics:
    return GroupMetrics(job="night", group=group, seconds_by_cause=lambda: {"productive": 1.5})


def get(url: str) -> str:
    with open_url(url, timeout=10.0) as answer:
        return str(answer.read().decode())


def port_of(server: MetricsServer) -> int:
    return int(server.url.rpartition(":")[2].removesuffix("/metrics"))


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with closing(MetricsServer(counts(), ANY)) as serving:
        yield serving


def test_it_serves_what_is_counted(server: MetricsServer) -> None:
    assert 'headway_group_seconds_total{cause="productive",group="2",job="night"} 1.5' in get(server.url)


def test_it_can_only_be_read(server: MetricsServer) -> None:
    with pytest.raises(HTTPError) as refused, open_url(Request(server.url, data=b"x"), timeout=10.0):
        pass
    assert refused.value.code == 501
    refused.value.close()
    assert "headway_group_step" in get(server.url)


@contextmanager
def trickle(port: int) -> Iterator[socket.socket]:
    """A client that never comes to the end of its request, but goes on with it all the time."""
    stop = threading.Event()

    def send(connected: socket.socket) -> None:
        with suppress(OSError):
            connected.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            while not stop.wait(0.05):
                connected.sendall(b"x")

    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connected:
        thread = threading.Thread(target=send, args=(connected,))
        thread.start()
        yield connected
        stop.set()
        thread.join()


def test_slow_clients_hold_up_neither_others_nor_the_end(server: MetricsServer) -> None:
    with trickle(port_of(server)), socket.create_connection(("127.0.0.1", port_of(server))):
        assert "headway_group_step" in get(server.url)
        begun = time.monotonic()
        server.close()
        assert time.monotonic() - begun < 1
        assert not any(thread.name == "headway-metrics" for thread in threading.enumerate())


def test_a_request_has_one_deadline_however_it_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 0.3)
    with (
        closing(MetricsServer(counts(), ANY)) as server,
        trickle(port_of(server)) as connected,
        suppress(ConnectionError),
    ):
        assert connected.recv(1) == b""


def test_one_client_too_many_costs_the_oldest_its_connection(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "MAX_CLIENTS", 1)
    with trickle(port_of(server)) as oldest:
        assert "headway_group_step" in get(server.url)
        with suppress(ConnectionError):
            assert oldest.recv(1) == b""


def when_served(url: str, sign: str = "") -> str:
    """What is served there as soon as it holds this sign."""
    waiting = threading.Event()
    for _ in range(500):
        with suppress(URLError, ConnectionError):
            if sign in (text := get(url)):
                return text
        waiting.wait(0.02)
    raise AssertionError(f"{url} never served {sign}")


@pytest.mark.parametrize("junk", [b"GET //[ HTTP/1.1\r\n\r\n", b"\0\xff\r\n\r\n", b""])
def test_junk_is_no_event(
    server: MetricsServer, junk: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=10.0) as connected:
        connected.sendall(junk)
        connected.shutdown(socket.SHUT_WR)
        while connected.recv(1 << 12):
            pass
    assert "headway_group_step" in get(server.url)
    assert "Traceback" not in capfd.readouterr().err + caplog.text


def test_closing_frees_the_port_and_ends_the_thread(server: MetricsServer) -> None:
    port = port_of(server)
    server.close()
    assert not any(thread.name == "headway-metrics" for thread in threading.enumerate())
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_port_in_use_keeps_nobody_out_and_is_taken_when_it_is_free(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_server, "RETRY_S", 0.02)
    bind = HostPort(host="127.0.0.1", port=port_of(server))
    with closing(MetricsServer(counts(group=3), bind)) as later:
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"port {bind} is in use" in caplog.text
        assert later.url == server.url
        assert 'group="2"' in get(later.url)
        server.close()
        assert 'group="3"' in when_served(later.url, 'group="3"')


def test_one_that_still_waits_for_its_port_can_be_closed(server: MetricsServer) -> None:
    bind = HostPort(host="127.0.0.1", port=port_of(server))
    MetricsServer(counts(group=3), bind).close()
    assert [thread.name for thread in threading.enumerate()].count("headway-metrics") == 1


def test_an_address_of_another_host_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"metrics on 192\.0\.2\.1:0: cannot assign"):
        MetricsServer(counts(), HostPort(host="192.0.2.1", port=0))


def test_only_where_it_is_asked_for() -> None:
    base = {"job": "night", "group": 2, "lighthouse": "h:1", "steps": 1, "micro_batches": 1}
    assert serve_metrics(GroupConfig(**base), dict) is None  # type: ignore[arg-type]
    config = GroupConfig(**base, metrics_bind="127.0.0.1:0")  # type: ignore[arg-type]
    server = serve_metrics(config, dict)
    assert server is not None
    with closing(server):
        assert 'headway_group_step{group="2",job="night"} 0.0' in get(server.url)


def test_a_malformed_address_is_refused() -> None:
    with pytest.raises(UserError, match="metrics_bind: malformed address '9100'"):
        GroupConfig(job="a", group=0, lighthouse="h:1", steps=1, micro_batches=1, metrics_bind="9100")
