"""The address that a process tells its peers: that of the interface which reaches the Lighthouse."""

import pytest

from replica.address import reachable_address
from replica.errors import UserError


@pytest.mark.parametrize("lighthouse", ["127.0.0.1:29510", "localhost:29510"])
def test_a_lighthouse_on_this_machine_is_reached_over_loopback(lighthouse: str) -> None:
    assert reachable_address(lighthouse) in ("127.0.0.1", "::1")


def test_an_unresolvable_host_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match=r"'no-such-host\.invalid:29510' does not resolve"):
        reachable_address("no-such-host.invalid:29510")
