"""Under which address peers reach this process."""

import socket

from replica.errors import UserError


def reachable_address(lighthouse: str) -> str:
    """IP address of the interface whose route leads to `lighthouse` (HOST:PORT).

    Asks the kernel's routing table with an unsent datagram: nothing goes over the network.
    Raises UserError when the host name does not resolve.
    """
    host, _, port = lighthouse.rpartition(":")
    try:
        family, _, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise UserError(
            f"the Lighthouse's host in {lighthouse!r} does not resolve ({error.strerror}): "
            f"check --lighthouse-addr"
        ) from None
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
        except OSError as error:
            raise UserError(
                f"no interface leads to the Lighthouse at {lighthouse!r} ({error.strerror}): "
                f"check the network, or set --advertise-addr"
            ) from None
        return str(probe.getsockname()[0])
