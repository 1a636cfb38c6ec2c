"""The metrics of a group over HTTP: they can be read, a port in use is told, a silent client is cut off."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from urllib.error import HTTPError
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


def counts() -> GroupMetrics:
    return GroupMetrics(job="night", group=2, seconds_by_cause=lambda: {"productive": 1.5})


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


def test_a_silent_client_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_S", 0.2)
    with (
        closing(MetricsServer(counts(), ANY)) as server,
        socket.create_connection(("127.0.0.1", port_of(server))),
    ):
        assert "headway_group_step" in get(server.url)


def test_closing_frees_the_port_and_ends_the_thread(server: MetricsServer) -> None:
    port = port_of(server)
    server.close()
    assert not any(thread.name == "headway-metrics" for thread in threading.enumerate())
    with closing(MetricsServer(counts(), HostPort(host="127.0.0.1", port=port), patience_s=0.0)) as again:
        assert port_of(again) == port


def test_a_port_that_stays_in_use_is_one_sentence(server: MetricsServer) -> None:
    bind = HostPort(host="127.0.0.1", port=port_of(server))
    with pytest.raises(UserError, match=rf"metrics on {bind}: the port is in use; choose another"):
        MetricsServer(counts(), bind, patience_s=0.2)


def test_a_port_that_becomes_free_is_waited_for(server: MetricsServer) -> None:
    bind = HostPort(host="127.0.0.1", port=port_of(server))
    threading.Timer(0.3, server.close).start()
    with closing(MetricsServer(counts(), bind, patience_s=20.0)) as later:
        assert port_of(later) == bind.port


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
