"""How a client shows who it is: the token, proved call by call and never sent, and TLS where it is set."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from lighthouse.address import parse_host_port
from lighthouse.challenge import credentials
from lighthouse.channel import LockedOutError, UnreachableError, error_of, open_channel
from lighthouse.job_token import read_token
from lighthouse.tls import Tls, TlsError, read_tls, speaks_tls, why_not
from protos import lighthouse_pb2 as pb

SERVICE = "/headway.lighthouse.v1.LighthouseService/"
CHALLENGE_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a client has to show. `token` empty, `tls` None: nothing of the kind.

    With `tls`, whose `ca` must be there, nothing goes to a Lighthouse but over TLS.
    """

    token: bytes = field(default=b"", repr=False)
    tls: Tls | None = None


OPEN = Access()


def read_access(
    token_file: Path | None, *, cert: Path | None = None, key: Path | None = None, ca: Path | None = None
) -> Access:
    """What the files of a client hold. Raises TokenFileError or TlsError, with one sentence."""
    token = b"" if token_file is None else read_token(token_file)
    if ca is None:
        if cert is not None or key is not None:
            raise TlsError("--tls-cert or --tls-key is given without --tls-ca: give the CA of the Lighthouse")
        return Access(token=token)
    return Access(token=token, tls=read_tls(cert=cert, key=key, ca=ca))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A channel on which one call of one method may be made, with this metadata."""

    channel: Any
    metadata: tuple[tuple[str, str], ...] = ()


@contextmanager
def entering(
    address: str,
    method: str,
    access: Access,
    *,
    timeout_s: float = CHALLENGE_TIMEOUT_S,
    publish: Callable[[Any], None] = lambda call: None,
) -> Iterator[Entry]:
    """What is needed for a call of `method` at `h:p`: the channel is closed at the end.

    Blocks for one or two round trips where there is something to show, each at most `timeout_s`;
    `publish` is given each of these calls, so that another thread can cancel them. Raises
    LighthouseError, a refusal where TLS does not come about.
    """
    if access == OPEN:
        with open_channel(address) as channel:
            yield Entry(channel=channel)
        return
    target = address if access.tls is None else _tls_target(address, timeout_s, publish)
    credentials_ = None if access.tls is None else access.tls.channel_credentials()
    with open_channel(target, credentials_) as channel:
        try:
            nonce = _challenge(channel, timeout_s, publish).nonce
        except grpc.RpcError as error:
            if access.tls is not None and (why := why_not(target, access.tls)) is not None:
                raise LockedOutError(f"no TLS with the Lighthouse at {target}: {why}") from None
            if access.tls is not None or error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise error_of(target, error) from None
            nonce = b""  # the call itself will tell that this is not a Lighthouse of ours
        yield Entry(channel=channel, metadata=_metadata(access, method, nonce))


def demands_token(address: str, access: Access, timeout_s: float = CHALLENGE_TIMEOUT_S) -> bool:
    """Whether the token that `access` holds is asked for at `h:p`, of which nobody is told otherwise.

    Blocks as `entering` does. Raises LighthouseError.
    """
    with entering(address, "Attach", access, timeout_s=timeout_s) as entry:
        return bool(entry.metadata)


def _tls_target(address: str, timeout_s: float, publish: Callable[[Any], None]) -> str:
    """Where TLS is spoken by the Lighthouse whose open port is at `address`."""
    with open_channel(address) as channel:
        try:
            port = _challenge(channel, timeout_s, publish).tls_port
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and (why := wrong_port(address)) is not None:
                raise LockedOutError(why) from None
            raise error_of(address, error) from None
    if not 0 < port < 65536:
        raise LockedOutError(
            f"the Lighthouse at {address} does not speak TLS: start it with --tls-cert and --tls-key, "
            "or give no --tls-ca here"
        )
    return str(replace(parse_host_port(address), port=port))


def wrong_port(address: str) -> str | None:
    """What to say where TLS is spoken at the address given for a Lighthouse; None where it is not.

    Blocks at most some seconds.
    """
    if not speaks_tls(address):
        return None
    return f"TLS is spoken at {address}: give the Lighthouse's open port (29510), it tells where TLS is"


def _challenge(channel: Any, timeout_s: float, publish: Callable[[Any], None]) -> pb.ChallengeResponse:
    method = channel.unary_unary(
        SERVICE + "Challenge",
        request_serializer=pb.ChallengeRequest.SerializeToString,
        response_deserializer=pb.ChallengeResponse.FromString,
    )
    call = method.future(pb.ChallengeRequest(), timeout=timeout_s)
    publish(call)
    try:
        response: pb.ChallengeResponse = call.result()
    except grpc.FutureCancelledError:
        raise UnreachableError("the call was given up") from None
    return response


def _metadata(access: Access, method: str, nonce: bytes) -> tuple[tuple[str, str], ...]:
    if not access.token or not nonce:
        return ()
    return (("authorization", credentials(access.token, method=method, nonce=nonce)),)
