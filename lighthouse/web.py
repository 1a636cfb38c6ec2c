"""The status server: /, /status.json, /metrics and /healthz over plain HTTP. It can only be read."""

import asyncio
import json
import socket
from dataclasses import dataclass
from types import TracebackType

from lighthouse.coordinator import Coordinator
from lighthouse.metrics import render_metrics
from lighthouse.page import render_page
from lighthouse.status import describe

MAX_REQUEST_BYTES = 8192
MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0

_PLAIN = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """An answer: status line, media type, body."""

    status: str = "200 OK"
    media_type: str = _PLAIN
    body: bytes = b""


class StatusServer:
    """An asynchronous context manager around a small HTTP server. One request per connection.

    There are at most MAX_CONNECTIONS. When one more comes, the oldest makes room, so that those who say
    nothing, or do not read their answer, keep nobody out.
    """

    def __init__(self, coordinator: Coordinator, *, host: str, port: int) -> None:
        self._coordinator = coordinator
        self._host = host
        self._requested_port = port
        self._visitors: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "StatusServer":
        """Listen. Raises OSError if the address cannot be had."""
        if self._host in ("::", ""):
            everywhere = _listen_everywhere(self._requested_port)
            self._server = await asyncio.start_server(self._serve, sock=everywhere, limit=MAX_REQUEST_BYTES)
        else:
            self._server = await asyncio.start_server(
                self._serve, self._host, self._requested_port, limit=MAX_REQUEST_BYTES
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._visitors) >= MAX_CONNECTIONS:
            self._hang_up(next(iter(self._visitors)))
        self._visitors[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._exchange(reader, writer)
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the browser went away, says or reads nothing, or the server is being stopped
        finally:
            self._hang_up(writer)

    def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        """Close at once. What was not sent yet is dropped: it would stay for as long as nobody reads it."""
        writer.transport.abort()
        self._visitors.pop(writer, None)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _send(writer, Page(status="431 Request Header Fields Too Large"), with_body=True)
            return
        method, target = _request_line(head)
        if method not in ("GET", "HEAD"):
            page = Page(status="405 Method Not Allowed", body=b"this server can only be read\n")
        else:
            page = self.answer(target)
        await _send(writer, page, with_body=method != "HEAD")

    def answer(self, target: str) -> Page:
        """The page for a request target. Runs on the event loop's thread."""
        match target.partition("?")[0]:
            case "/":
                page = render_page(describe(self._coordinator))
                return Page(media_type="text/html; charset=utf-8", body=page.encode())
            case "/status.json":
                document = json.dumps(describe(self._coordinator))
                return Page(media_type="application/json", body=document.encode())
            case "/metrics":
                return Page(media_type=_METRICS, body=render_metrics(self._coordinator))
            case "/healthz":
                return Page(body=b"ok\n")
        return Page(status="404 Not Found", body=b"try /, /status.json, /metrics or /healthz\n")


def _listen_everywhere(port: int) -> socket.socket:
    """A socket on all interfaces, for IPv6 and IPv4: asyncio's own would be for IPv6 alone."""
    both = socket.has_dualstack_ipv6()
    return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=both)


def _request_line(head: bytes) -> tuple[str, str]:
    parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    return (parts[0], parts[1]) if len(parts) == 3 else ("", "")


async def _send(writer: asyncio.StreamWriter, page: Page, *, with_body: bool) -> None:
    lines = (
        f"HTTP/1.1 {page.status}",
        f"Content-Type: {page.media_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        "\r\n",
    )
    writer.write("\r\n".join(lines).encode() + (page.body if with_body else b""))
    await writer.drain()
