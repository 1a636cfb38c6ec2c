"""Reading HOST:PORT as people write it, and writing it so that others can use it."""

import socket
from dataclasses import dataclass

_ANY = ("::", "0.0.0.0", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPort:
    """A host, without brackets, and a port. Port 0 asks the system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_any(self) -> bool:
        """Whether it stands for all interfaces of this machine."""
        return self.host in _ANY

    def url(self) -> str:
        """`http://HOST:PORT` for others: the machine's name where all interfaces are meant."""
        host = own_hostname() if self.is_any else self.host
        return f"http://{HostPort(host=host, port=self.port)}"


def parse_host_port(text: str, *, lowest_port: int = 0) -> HostPort:
    """Read `host:port` or `[ipv6]:port`. Raises ValueError with one sentence.

    `*:port` and `:port` mean all interfaces.
    """
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    odd = not bracketed and ":" in bare
    if not colon or odd or any(char.isspace() or char in "/[]@" for char in bare):
        raise ValueError(f"malformed address {text!r}: want HOST:PORT, or [IPV6]:PORT")
    if not port.isascii() or not port.isdigit() or not lowest_port <= int(port[:6]) <= 65535:
        raise ValueError(f"malformed address {text!r}: the port must be {lowest_port} to 65535")
    return HostPort(host="" if bare == "*" else bare, port=int(port))


def parse_address(text: str) -> str:
    """The gRPC target of a Lighthouse: `http://h:p`, `h:p` and `[::1]:p` become `h:p`.

    Raises ValueError with one sentence. Nothing is resolved.
    """
    scheme, slashes, rest = text.strip().rpartition("://")
    if slashes and scheme.lower() != "http":
        raise ValueError(f"malformed address {text!r}: only http:// is spoken here")
    parsed = parse_host_port(rest.removesuffix("/") if slashes else rest, lowest_port=1)
    if not parsed.host:
        raise ValueError(f"malformed address {text!r}: the host is missing")
    return str(parsed)


def own_hostname() -> str:
    """This machine's name if it can be resolved, else `localhost`. May block on a name server."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
