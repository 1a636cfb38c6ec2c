"""Addresses as people write them."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.address import HostPort, own_hostname, parse_address, parse_host_port

REFUSED = (
    "|node1|node1:|node1:x|node1:0|node1:65536|node1:-1|:29510|::1:29510|https://node1:29510"
    "|http://node1:29510/path|node 1:29510|u@node1:1|node1:٣|[]:1"
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://node1:29510", "node1:29510"),
        ("HTTP://node1:29510/", "node1:29510"),
        ("node1:29510", "node1:29510"),
        (" 10.0.0.1:1 ", "10.0.0.1:1"),
        ("[::1]:29510", "[::1]:29510"),
        ("http://[fd00::2]:29510", "[fd00::2]:29510"),
    ],
)
def test_addresses_that_are_taken(text: str, target: str) -> None:
    assert parse_address(text) == target


@pytest.mark.parametrize("text", REFUSED.split("|"))
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^malformed address '") as caught:
        parse_address(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        target = parse_address(text)
    except ValueError:
        return
    assert parse_address(target) == target


def test_bind_addresses() -> None:
    assert parse_host_port("[::]:0") == HostPort(host="::", port=0)
    assert parse_host_port("*:7") == parse_host_port(":7") == HostPort(host="", port=7)
    assert str(HostPort(host="::1", port=7)) == "[::1]:7"


def test_url_names_the_machine_where_all_interfaces_are_meant() -> None:
    assert HostPort(host="127.0.0.1", port=7).url() == "http://127.0.0.1:7"
    assert HostPort(host="::1", port=7).url() == "http://[::1]:7"
    for host in ("::", "0.0.0.0", ""):
        assert HostPort(host=host, port=7).url() == f"http://{own_hostname()}:7"


def test_a_name_that_cannot_be_resolved_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no such host.invalid")
    assert own_hostname() == "localhost"
