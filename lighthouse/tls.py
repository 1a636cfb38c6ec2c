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


class TlsError(ValueError):
    """These files cannot be used. Its text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """A certificate with its key, and the CA that others are checked against; PEM, as it was in the files.

    On a server, with `ca`, callers must show a certificate of that CA. Where there is no `cert`, there
    is no `key`.
    """

    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ca: bytes | None = None
    cert_path: Path | None = None
    key_path: Path | None = None

    def serving(self) -> ssl.SSLContext:
        """For the end of a socket that is connected to. TLS 1.3."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        return self._fill(context, must_show=self.ca is not None)

    def calling(self) -> ssl.SSLContext:
        """For the end that connects: the other side's certificate must be of the CA. TLS 1.3.

        Whether it is made out to the name that was called is left to the caller.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._fill(context, must_show=True)

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

    def _fill(self, context: ssl.SSLContext, *, must_show: bool) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED if must_show else ssl.CERT_NONE
        if self.ca is not None:
            context.load_verify_locations(cadata=self.ca.decode())
        if self.cert_path is not None:
            # A key behind a password would ask for it on the terminal.
            context.load_cert_chain(self.cert_path, self.key_path, password=lambda: "")
        return context


def read_tls(*, cert: Path | None, key: Path | None, ca: Path | None) -> Tls:
    """What the files hold, checked as far as it can be. Raises TlsError."""
    if (cert is None) != (key is None):
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise TlsError(f"{given} is given without {missing}: give both or neither")
    tls = Tls(cert=_read(cert), key=_read(key), ca=_read(ca), cert_path=cert, key_path=key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=(tls.ca or b"").decode() or None)
    except (ssl.SSLError, ValueError, TypeError):
        if ca is not None:
            raise TlsError(f"the CA file {ca} holds no certificate: give one in PEM form") from None
    try:
        tls.serving()
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or "they cannot be read"
        raise TlsError(
            f"{cert} and {key} cannot be used ({str(why).lower().replace('_', ' ')}): give a certificate and "
            "its own key, without a password, in PEM form"
        ) from None
    return tls


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
    context = tls.calling()
    context.check_hostname = True
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((target.host, target.port), timeout=_PROBE_S) as connected,
            context.wrap_socket(connected, server_hostname=target.host) as secure,
        ):
            # What the server thinks of our certificate shows in its first word; gRPC's says none then.
            return None if secure.recv(1) else _ALERTS["CERTIFICATE_REQUIRED"]
    except ssl.SSLError as error:
        return sentence_of(error)
    except OSError:
        return None


def sentence_of(error: ssl.SSLError) -> str:
    """What went wrong between two ends, as half a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused here ({error.verify_message}): is --tls-ca the CA of both?"
    reason = error.reason or ""
    for alert, words in _ALERTS.items():
        if alert in reason:
            return words
    return f"TLS failed ({(reason or str(error)).lower().replace('_', ' ')})"
