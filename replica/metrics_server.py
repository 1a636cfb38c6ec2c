"""Serves the metrics of a group over HTTP, on one thread of its own; it can only be read."""

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
# An earlier incarnation that froze holds its port until it has been told to end.
PATIENCE_S = 15.0
REQUEST_TIMEOUT_S = 5.0
_RETRY_S = 0.1
_POLL_S = 0.2


def serve_metrics(
    config: GroupConfig, seconds_by_cause: Callable[[], Mapping[str, float]]
) -> "MetricsServer | None":
    """The metrics of a group at its metrics_bind, None where it has none. Raises UserError."""
    if config.metrics_bind is None:
        return None
    counts = GroupMetrics(job=config.job, group=config.group, seconds_by_cause=seconds_by_cause)
    return MetricsServer(counts, parse_host_port(config.metrics_bind))


class MetricsServer:
    """Listens from the start until `close`. One request at a time: who says nothing is cut off."""

    def __init__(self, counts: GroupMetrics, bind: HostPort, *, patience_s: float = PATIENCE_S) -> None:
        """Blocks for at most patience_s, while the port is in use. Raises UserError if it stays so."""
        self.counts = counts
        registry = CollectorRegistry(auto_describe=False)
        registry.register(counts)
        handler = type("Handler", (MetricsHandler,), {"registry": registry, "timeout": REQUEST_TIMEOUT_S})
        self._server = _listen(bind, handler, time.monotonic() + patience_s)
        port = self._server.server_address[1]
        self.url = HostPort(host=bind.host, port=port).url() + "/metrics"
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(_POLL_S,), name="headway-metrics", daemon=True)
        self._thread.start()
        LOG.info("metrics on %s", self.url)

    def close(self) -> None:
        """Stop. Blocks for 0.2 s at most, or until a request under way is over."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(HTTPServer):
    def server_bind(self) -> None:
        """Without asking a name server for the name of this host, which may take its time."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away is no event."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _listen(bind: HostPort, handler: Any, deadline_s: float) -> HTTPServer:
    kind = _Server6 if ":" in bind.host else _Server
    while True:
        try:
            return kind((bind.host, bind.port), handler)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            if in_use and time.monotonic() < deadline_s:
                time.sleep(_RETRY_S)
                continue
            why = "the port is in use" if in_use else (error.strerror or str(error)).lower()
            raise UserError(
                f"cannot serve metrics on {bind}: {why}; choose another --metrics-bind, one for each group "
                "of a host, or port 0"
            ) from None
