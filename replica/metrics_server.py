"""Serves the metrics of a group over HTTP, on threads of its own; it can only be read."""

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import HTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from lighthouse.address import HostPort, parse_host_port
from replica.config import GroupConfig
from replica.errors import UserError
from replica.metrics import GroupMetrics

LOG = logging.getLogger("headway")
# For a whole request with its answer: who takes longer is cut off.
REQUEST_S = 5.0
MAX_CLIENTS = 16
# How often a port that is in use is tried again.
RETRY_S = 1.0
_POLL_S = 0.2
_CLOSE_S = 1.0


def serve_metrics(
    config: GroupConfig, seconds_by_cause: Callable[[], Mapping[str, float]]
) -> "MetricsServer | None":
    """The metrics of a group at its metrics_bind, None where it has none. Raises UserError."""
    if config.metrics_bind is None:
        return None
    counts = GroupMetrics(job=config.job, group=config.group, seconds_by_cause=seconds_by_cause)
    return MetricsServer(counts, parse_host_port(config.metrics_bind))


class MetricsServer:
    """Listens from the start until `close`; where the port is in use, from when it is free.

    An earlier life of the group that froze may hold the port until it has been told to end, and metrics
    are no reason to keep a group out. Clients are served at the same time, each on a thread of its own.
    """

    def __init__(self, counts: GroupMetrics, bind: HostPort) -> None:
        """Does not block. Raises UserError for an address at which this host cannot listen."""
        self.counts = counts
        registry = CollectorRegistry(auto_describe=False)
        registry.register(counts)
        self._bind = bind
        self._handler = type("Handler", (MetricsHandler,), {"registry": registry})
        server = self._listen()
        port = bind.port if server is None else int(server.server_address[1])
        self.url = HostPort(host=bind.host, port=port).url() + "/metrics"
        if server is None:
            LOG.warning(
                "metrics are not served yet: port %s is in use, and is tried again until it is free; if that "
                "lasts, choose another --metrics-bind, one for each group of a host, or port 0",
                bind,
            )
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(server,), name="headway-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop, and cut off whom an answer is under way to. Blocks for some tenths of a second."""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _serve(self, server: "_Server | None") -> None:
        while server is None:
            if self._closed.wait(RETRY_S):
                return
            with contextlib.suppress(UserError):
                server = self._listen()
        LOG.info("metrics on %s", self.url)
        with server:
            while not self._closed.is_set():
                server.handle_request()
                server.cut_off(time.monotonic())
            server.cut_off(float("inf"))

    def _listen(self) -> "_Server | None":
        """A server that listens, None where the port is in use. Raises UserError."""
        kind = _Server6 if ":" in self._bind.host else _Server
        try:
            return kind((self._bind.host, self._bind.port), self._handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            why = (error.strerror or str(error)).lower()
            raise UserError(
                f"cannot serve metrics on {self._bind}: {why}; choose another --metrics-bind, an address of "
                "this host"
            ) from None


class _Server(HTTPServer):
    """Its thread accepts; a client that is slow costs one of MAX_CLIENTS threads, for REQUEST_S at most."""

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._lock = threading.Lock()
        self._until_s: dict[socket.socket, float] = {}
        super().__init__(address, handler)
        self.socket.settimeout(_POLL_S)  # for `handle_request`, and for a connection that is gone again

    def server_bind(self) -> None:
        """Without asking a name server for the name of this host, which may take its time."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on another thread. For one client too many, the oldest is cut off."""
        with self._lock:
            if len(self._until_s) >= MAX_CLIENTS:
                oldest = next(iter(self._until_s))
                del self._until_s[oldest]
                _hang_up(oldest)
            self._until_s[request] = time.monotonic() + REQUEST_S
        threading.Thread(
            target=self._answer, args=(request, client_address), name="headway-metrics-client", daemon=True
        ).start()

    def cut_off(self, now_s: float) -> None:
        """End the connections whose time is over. Any thread."""
        with self._lock:
            late = [request for request, until_s in self._until_s.items() if until_s <= now_s]
        for request in late:
            _hang_up(request)

    def shutdown_request(self, request: Any) -> None:
        """Let go of a connection."""
        with self._lock:
            self._until_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away is no event."""

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (OSError, ValueError):  # it went away, or its words are none of HTTP
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _hang_up(connected: socket.socket) -> None:
    """End what its thread waits for; that thread then lets go of it."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
