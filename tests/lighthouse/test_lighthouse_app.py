"""The whole server: addresses that cannot be had, a machine without IPv6, and a clean end."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from serving import LOCAL, config

from lighthouse import app
from lighthouse.address import HostPort, own_hostname
from lighthouse.app import BindError, serve
from lighthouse.job_token import TokenFileError
from lighthouse.tls import TlsError


def addresses(**fields: object) -> tuple[str, str | None]:
    """The addresses that a server with these settings gives."""

    async def body() -> tuple[str, str | None]:
        async with serve(config(**fields)) as lighthouse:
            return lighthouse.url, lighthouse.status_url

    return asyncio.run(body())


def test_all_interfaces_are_named_by_the_machine() -> None:
    anywhere = HostPort(host="::", port=0)
    url, status_url = addresses(bind=anywhere, http_bind=anywhere)
    for address in (url, status_url):
        assert address is not None
        assert address.startswith(f"http://{own_hostname()}:")
        assert not address.endswith(":0")


def test_all_interfaces_are_those_of_ipv4_and_of_ipv6() -> None:
    hosts = ["127.0.0.1", "localhost", own_hostname()] + ["::1"] * socket.has_dualstack_ipv6()

    async def body() -> None:
        anywhere = HostPort(host="::", port=0)
        async with serve(config(bind=anywhere, http_bind=anywhere)) as lighthouse:
            for url in (lighthouse.url, lighthouse.status_url or ""):
                for host in hosts:
                    _, writer = await asyncio.open_connection(host, int(url.rpartition(":")[2]))
                    writer.close()

    asyncio.run(body())


def test_without_ipv6_the_status_is_served_over_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_without_ipv6", lambda bind: replace(bind, host="0.0.0.0"))

    async def body() -> None:
        async with serve(config(http_bind=HostPort(host="::", port=0))) as lighthouse:
            port = int((lighthouse.status_url or "").rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()

    asyncio.run(body())


def test_the_status_server_can_be_left_out() -> None:
    assert addresses(http_bind=None)[1] is None


@pytest.mark.parametrize("flag", ["bind", "http_bind"])
def test_a_port_in_use_is_one_sentence(flag: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = HostPort(host="127.0.0.1", port=other.getsockname()[1])
        with pytest.raises(BindError, match=rf"cannot listen on {taken}: the port is in use") as caught:
            addresses(**{flag: taken})
    assert str(caught.value).endswith(f"choose another --{flag.replace('_', '-')}")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_nobody_is_one_sentence(host: str) -> None:
    with pytest.raises(BindError, match=rf"cannot listen on {host}:7: .*, choose another --bind"):
        addresses(bind=HostPort(host=host, port=7))


def test_without_ipv6_all_interfaces_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int = -1, *rest: int, **more: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError("address family not supported")
        return real(family, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(app.socket, "socket", without_ipv6)
    assert app._without_ipv6(HostPort(host="::", port=5)) == HostPort(host="0.0.0.0", port=5)
    assert app._without_ipv6(LOCAL) == LOCAL


def test_leaving_frees_the_port() -> None:
    url, _ = addresses()
    port = int(url.rpartition(":")[2])
    assert addresses(bind=HostPort(host="127.0.0.1", port=port))[0] == url


@pytest.mark.parametrize(
    ("mode", "says"),
    [(None, "open_to_all"), (0o644, "token_is_readable"), (0o600, None)],
)
def test_it_says_at_the_start_what_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int | None, says: str | None
) -> None:
    token = tmp_path / "token"
    token.write_text("the secret of this job")
    token.chmod(mode or 0o600)
    addresses(token_file=None if mode is None else token)
    said = capsys.readouterr().out
    assert {word for word in ("open_to_all", "token_is_readable") if word in said} == {says} - {None}
    assert "no_tls" in said
    assert "the secret" not in said


def test_files_that_cannot_be_used_end_it_before_it_listens(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError):
        addresses(token_file=tmp_path / "gone")
    with pytest.raises(TlsError):
        addresses(tls_cert=tmp_path / "gone", tls_key=tmp_path / "gone")


def test_a_port_for_tls_that_is_in_use_is_one_sentence(certificates: Path) -> None:
    own = {"tls_cert": certificates / "own.pem", "tls_key": certificates / "own.key"}
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = HostPort(host="127.0.0.1", port=other.getsockname()[1])
        with pytest.raises(BindError, match=r"the port is in use.* --tls-bind"):
            addresses(**own, tls_bind=taken)
