"""Certificates: read once from files, and what gRPC and plain sockets make of them."""

import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from lighthouse.address import parse_host_port

_PROBE_S = 5.0
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it asks for a certificate of its own CA: give one with --tls-cert and --tls-key",
    "UNKNOWN_CA": "it does not know the CA of our certificate: give one of its own CA",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
}
_NOT_TAKEN = "it does not take our certificate: give one of its own CA that has not expired"
# OpenSSL's codes for a certificate that is made out to another name, or to another IP address.
_OTHER_NAME = (62, 64)


class TlsError(ValueError):
    """These files cannot be used. Its text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """A certificate with its key, and the CA that others are checked against; PEM, as it was in the files.

    On a server, with `ca`, callers must show a certificate of that CA. Where there is no `cert`, there
    is no `key`. The contexts speak TLS 1.3: `serving` at the end of a socket that is connected to,
    `calling` at the end that connects, where the other side's certificate must be of the CA, whatever
    name it is made out to, and `calling_by_name` where it must be made out to the host that is called.
    """

    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ca: bytes | None = None
    serving: ssl.SSLContext = field(repr=False)
    calling: ssl.SSLContext = field(repr=False)
    calling_by_name: ssl.SSLContext = field(repr=False)

    def server_credentials(self) -> Any:
        """For the port of a gRPC server."""
        return grpc.ssl_server_credentials(
            [(self.key, self.cert)], root_certificates=self.ca, require_client_auth=self.ca is not None
        )

    def channel_credentials(self) -> Any:
        """For a gRPC channel. gRPC checks also that the certificate is made out to the host called."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca, private_key=self.key, certificate_chain=self.cert
        )


def read_tls(*, cert: Path | None, key: Path | None, ca: Path | None) -> Tls:
    """What the files hold, checked as far as it can be; they are not needed again. Raises TlsError."""
    if (cert is None) != (key is None):
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise TlsError(f"{given} is given without {missing}: give both or neither")
    own, secret, trusted = _read(cert), _read(key), _read(ca)
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)]
    contexts += [ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2)]
    for context in contexts:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        _trust(context, ca, trusted)
        _show(context, cert, key)
    serving, calling, by_name = contexts
    serving.verify_mode = ssl.CERT_NONE if ca is None else ssl.CERT_REQUIRED
    calling.check_hostname = False
    by_name.set_alpn_protocols(["h2"])
    return Tls(cert=own, key=secret, ca=trusted, serving=serving, calling=calling, calling_by_name=by_name)


def _trust(context: ssl.SSLContext, ca: Path | None, content: bytes | None) -> None:
    if content is None:
        return
    try:
        context.load_verify_locations(cadata=content.decode())
    except (ssl.SSLError, ValueError):
        raise TlsError(f"the CA file {ca} holds no certificate: give one in PEM form") from None


def _show(context: ssl.SSLContext, cert: Path | None, key: Path | None) -> None:
    if cert is None:
        return
    try:
        # A key behind a password would ask for it on the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or "they cannot be read"
        raise TlsError(
            f"{cert} and {key} cannot be used ({str(why).lower().replace('_', ' ')}): give a certificate and "
            "its own key, without a password, in PEM form"
        ) from None


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"the file {path} cannot be read ({error.strerror}): name another") from None


def why_not(address: str, tls: Tls) -> str | None:
    """Why TLS with the server at `h:p` does not come about, as half a sentence; None if it does.

    Blocks at most some seconds. None also if nobody is there.
    """
    target = parse_host_port(address, lowest_port=1)
    try:
        with (
            socket.create_connection((target.host, target.port), timeout=_PROBE_S) as connected,
            tls.calling_by_name.wrap_socket(connected, server_hostname=target.host) as secure,
        ):
            # What the server thinks of our certificate shows in its first word; gRPC's says none then.
            if secure.recv(1):
                return None
            return _ALERTS["CERTIFICATE_REQUIRED"] if tls.cert is None else _NOT_TAKEN
    except ssl.SSLError as error:
        return sentence_of(error)
    except OSError:
        return None


def speaks_tls(address: str) -> bool:
    """Whether TLS is spoken at `h:p`, by whomever. Blocks at most some seconds."""
    target = parse_host_port(address, lowest_port=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((target.host, target.port), timeout=_PROBE_S) as connected,
            context.wrap_socket(connected),
        ):
            return True
    except OSError:
        return False


def sentence_of(error: ssl.SSLError) -> str:
    """What went wrong between two ends, as half a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return (
                f"its certificate is refused here ({error.verify_message}): call it by a name that is in it, "
                "or make one for this name, as a subjectAltName"
            )
        return f"its certificate is refused here ({error.verify_message}): is --tls-ca the CA of both?"
    reason = error.reason or ""
    for alert, words in _ALERTS.items():
        if alert in reason:
            return words
    return f"TLS failed ({(reason or str(error)).lower().replace('_', ' ')})"
