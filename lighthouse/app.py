"""Puts the Lighthouse together: store, machines, gRPC server, status server, and the tick."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import grpc
import structlog

from lighthouse.address import HostPort
from lighthouse.clock import Clock, RunningClock, SystemClock
from lighthouse.config import LighthouseConfig
from lighthouse.coordinator import Coordinator
from lighthouse.gate import Gate
from lighthouse.job_token import others_may_read, read_token
from lighthouse.servicer import HeadwayServicer
from lighthouse.standard_services import add_standard_services
from lighthouse.store import open_store
from lighthouse.tls import Tls, read_tls
from lighthouse.torchft_servicer import TorchftServicer
from lighthouse.web import StatusServer

MAX_REQUEST_BYTES = 256 * 1024
STOP_GRACE_S = 0.3

_log: Any = structlog.get_logger("lighthouse")


class BindError(Exception):
    """An address cannot be listened on. Its text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Lighthouse:
    """A Lighthouse that is serving. Addresses are `http://HOST:PORT`; `status_url` may be None.

    `tls_url` is `https://HOST:PORT` of our own service where it is spoken over TLS.
    """

    coordinator: Coordinator
    url: str
    status_url: str | None
    tls_url: str | None = None


@asynccontextmanager
async def serve(config: LighthouseConfig, clock: Clock | None = None) -> AsyncIterator[Lighthouse]:
    """Serve for as long as the context lasts; leaving it takes well under a second.

    Raises StoreError, BindError, TokenFileError or TlsError, each with one sentence.
    """
    token, tls = _secrets(config)
    running = RunningClock(clock or SystemClock(), longest_gap_s=max(1.0, 5 * config.quorum_tick_s))
    async with AsyncExitStack() as stack:
        store = open_store(config.state_dir)
        stack.callback(store.close)
        coordinator = Coordinator(config, store, running)
        bound, over_tls = await _serve_grpc(stack, coordinator, config, token, tls)
        status = await _serve_status(stack, coordinator, config.http_bind)
        ticker = asyncio.create_task(_tick(coordinator, running, config.quorum_tick_s))
        stack.push_async_callback(_end, ticker)
        _tell_what_is_open(config)
        yield Lighthouse(
            coordinator=coordinator,
            url=bound.url(),
            status_url=status.url() if status else None,
            tls_url=over_tls.url().replace("http:", "https:") if over_tls else None,
        )


def _secrets(config: LighthouseConfig) -> tuple[bytes, Tls | None]:
    """Token, empty for none, and certificates."""
    token = b"" if config.token_file is None else read_token(config.token_file)
    if config.tls_cert is None and config.tls_key is None:
        return token, None
    return token, read_tls(cert=config.tls_cert, key=config.tls_key, ca=config.tls_ca)


def _tell_what_is_open(config: LighthouseConfig) -> None:
    if config.token_file is None:
        _log.warning("open_to_all", why="no --token-file: whoever reaches this port can join and end jobs")
    elif others_may_read(config.token_file):
        why = f"every user of this host can read {config.token_file}: chmod 600 it"
        _log.warning("token_is_readable", why=why)
    if config.tls_cert is None:
        _log.info("no_tls", why="no --tls-cert: all goes over the network in the clear")


async def _serve_grpc(
    stack: AsyncExitStack, coordinator: Coordinator, config: LighthouseConfig, token: bytes, tls: Tls | None
) -> tuple[HostPort, HostPort | None]:
    """Serve on one port in the clear, and on another over TLS if there is a certificate."""
    server = grpc.aio.server(options=_SERVER_OPTIONS)
    bound = _add_port(server, config.bind, "--bind", None)
    over_tls = None if tls is None else _add_port(server, config.tls_bind, "--tls-bind", tls)
    gate = Gate(coordinator, token=token, tls_port=over_tls.port if over_tls else 0)
    handlers = (TorchftServicer(coordinator).handler(), HeadwayServicer(coordinator, gate).handler())
    server.add_generic_rpc_handlers(handlers)
    health = await add_standard_services(server)
    await server.start()
    stack.push_async_callback(_stop, server, coordinator, health)
    return bound, over_tls


def _add_port(server: Any, bind: HostPort, flag: str, tls: Tls | None) -> HostPort:
    bind = _without_ipv6(bind)
    _probe(bind, flag)
    try:
        if tls is None:
            port = server.add_insecure_port(str(bind))
        else:
            port = server.add_secure_port(str(bind), tls.server_credentials())
    except RuntimeError as error:
        raise BindError(f"cannot listen on {bind}: choose another {flag}") from error
    return replace(bind, port=port)


# A waiting client pings every minute; grpc would take offence at that, and at an idle one.
_SERVER_OPTIONS = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
)


async def _stop(server: Any, coordinator: Coordinator, health: Any) -> None:
    await health.enter_graceful_shutdown()
    coordinator.hang_up()
    await server.stop(STOP_GRACE_S)


async def _serve_status(
    stack: AsyncExitStack, coordinator: Coordinator, bind: HostPort | None
) -> HostPort | None:
    if bind is None:
        return None
    bind = _without_ipv6(bind)
    _probe(bind, "--http-bind")
    web = await stack.enter_async_context(StatusServer(coordinator, host=bind.host, port=bind.port))
    return replace(bind, port=web.port)


def _without_ipv6(bind: HostPort) -> HostPort:
    """All interfaces where there is no IPv6 means all of IPv4."""
    if bind.host not in ("::", ""):
        return bind
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind(("::", 0))
        return replace(bind, host="::")
    _log.warning("no_ipv6", asked=str(bind), using="0.0.0.0")
    return replace(bind, host="0.0.0.0")


def _probe(bind: HostPort, flag: str) -> None:
    """Find out by a socket of our own why an address cannot be had: the reason is then known."""
    try:
        found = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        why = "the port is in use, stop the other server or choose another" if in_use else _reason(error)
        raise BindError(f"cannot listen on {bind}: {why} {flag}") from error


def _reason(error: OSError) -> str:
    return f"{(error.strerror or str(error)).lower()}, choose another"


async def _tick(coordinator: Coordinator, clock: RunningClock, tick_s: float) -> None:
    paused_s = 0.0
    while True:
        await asyncio.sleep(tick_s)
        coordinator.tick()
        if clock.paused_s > paused_s:
            _log.warning("server_was_paused", paused_s=round(clock.paused_s - paused_s, 3))
            paused_s = clock.paused_s


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
