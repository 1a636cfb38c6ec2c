"""Channels to a Lighthouse, and the errors that a client of it meets."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

# No proxy from the environment; a peer that vanished without closing is noticed within 20 s.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

_WAIT_SLICE_S = 1.0


class LighthouseError(Exception):
    """A Lighthouse did not do what it was asked. The text is one sentence."""


class UnreachableError(LighthouseError):
    """Nobody answers at the address."""


class RefusedError(LighthouseError):
    """The Lighthouse has answered, and refused."""


class LockedOutError(RefusedError):
    """It has refused since token or certificate do not fit: so it will until they do."""


def open_channel(address: str, credentials: Any = None) -> Any:
    """A gRPC channel to `h:p`, to be closed by the caller. Connects when it is first used.

    With `credentials`, of gRPC, over TLS.
    """
    if credentials is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


def wait_until_reachable(
    address: str, deadline_s: float, on_wait: Callable[[float], None] | None = None
) -> None:
    """Block until a gRPC server answers at `address` (`h:p`), at most `deadline_s` from now.

    `on_wait` is called about once a second with the seconds waited so far. Raises UnreachableError
    when the time is up.
    """
    started_s = time.monotonic()
    ready = threading.Event()

    def look(state: Any) -> None:
        if state is grpc.ChannelConnectivity.READY:
            ready.set()

    with open_channel(address) as channel:
        channel.subscribe(look, try_to_connect=True)
        try:
            while not ready.wait(_slice_s(started_s, deadline_s)):
                waited_s = time.monotonic() - started_s
                if waited_s >= deadline_s:
                    raise UnreachableError(
                        f"no Lighthouse answers at {address} (waited {waited_s:.0f} s): start one with "
                        "`python -m lighthouse serve`, or correct the address"
                    )
                if on_wait is not None:
                    on_wait(waited_s)
        finally:
            channel.unsubscribe(look)


def _slice_s(started_s: float, deadline_s: float) -> float:
    return max(0.0, min(_WAIT_SLICE_S, started_s + deadline_s - time.monotonic()))


def error_of(address: str, error: grpc.RpcError) -> LighthouseError:
    """What a failed call means, as one sentence."""
    code, details = error.code(), error.details() or ""
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return UnreachableError(f"no Lighthouse answers at {address} ({details}): is it running?")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return RefusedError(f"the server at {address} is not a Lighthouse of headway")
    kind = LockedOutError if code is grpc.StatusCode.UNAUTHENTICATED else RefusedError
    return kind(f"the Lighthouse at {address} refuses: {details}")
