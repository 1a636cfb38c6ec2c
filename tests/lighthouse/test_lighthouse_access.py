"""The blocking client against servers with a token, with TLS, with both: what it shows, what it is told."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import LOCAL
from threaded import Threaded, threaded

from lighthouse.access import OPEN, Access, read_access
from lighthouse.attach import AttachStream, WatchStream
from lighthouse.client import (
    Hello,
    LockedOutError,
    UnreachableError,
    check_may_drain,
    demands_token,
    drain,
    evict,
    forget,
    leave,
    propose_save,
    status,
    watch_events,
    wrong_port,
)
from lighthouse.job_token import TokenFileError
from lighthouse.tls import TlsError, why_not

TOKEN = "the secret of this job"
WAIT_S = 10.0


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


@pytest.fixture
def other_token(tmp_path: Path) -> Path:
    path = tmp_path / "other"
    path.write_text("the secret of another job")
    return path


def tls_fields(certificates: Path, *, mutual: bool = True) -> dict[str, object]:
    own = {"tls_cert": certificates / "own.pem", "tls_key": certificates / "own.key", "tls_bind": LOCAL}
    return own | ({"tls_ca": certificates / "ca.pem"} if mutual else {})


@pytest.fixture
def secured(token_file: Path, certificates: Path) -> Iterator[Threaded]:
    with threaded(token_file=token_file, **tls_fields(certificates)) as server:
        yield server


def certified(folder: Path, name: str = "own", ca: str = "ca") -> dict[str, Path]:
    return {"cert": folder / f"{name}.pem", "key": folder / f"{name}.key", "ca": folder / f"{ca}.pem"}


def hello(group: int = 0, rank: int = 0) -> Hello:
    return Hello(job="job", group=group, replica_id=f"job/{group}:a", group_world_size=2, group_rank=rank)


def use_all(server: Threaded, access: Access) -> None:
    """Everything that a group and an operator do."""
    with (
        AttachStream(server.address, hello(), access=access) as attach,
        WatchStream(server.address, hello(rank=1), access=access) as watch,
    ):
        assert attach.open(WAIT_S) is not None
        assert watch.open(WAIT_S)
        propose_save(server.address, "job/0:a", None, access=access)
        assert drain(server.address, "job", 0, access=access)
        assert evict(server.address, "job", 0, access=access)
        assert not leave(server.address, "job/0:a", access=access)
    assert not forget(server.address, "other", access=access)
    assert status(server.address, access=access)["jobs"]


def refusals(server: Threaded, access: Access) -> set[str]:
    """How the server refuses everything that acts."""
    said = set()
    address = server.address
    for act in (
        lambda: AttachStream(address, hello(), access=access).open(WAIT_S),
        lambda: WatchStream(address, hello(rank=1), access=access).open(WAIT_S),
        lambda: propose_save(address, "job/0:a", None, access=access),
        lambda: drain(address, "job", 0, access=access),
        lambda: check_may_drain(address, "job", access=access),
        lambda: evict(address, "job", 0, access=access),
        lambda: leave(address, "job/0:a", access=access),
        lambda: forget(address, "job", access=access),
    ):
        with pytest.raises(LockedOutError) as refusal:
            act()
        said.add(str(refusal.value))
    assert server.look(lambda lighthouse: len(lighthouse.coordinator.machines)) == 0
    return said


def test_with_the_token_all_is_as_without_one(token_file: Path) -> None:
    with threaded(token_file=token_file) as server:
        use_all(server, read_access(token_file))


def test_without_it_or_with_another_every_act_is_refused_in_a_sentence(
    token_file: Path, other_token: Path
) -> None:
    with threaded(token_file=token_file) as server:
        (missing,) = refusals(server, OPEN)
        assert missing.endswith("no_token: the job's token is missing, give --token-file")
        (wrong,) = refusals(server, read_access(other_token))
        assert wrong.endswith(
            "wrong_token: this Lighthouse has another token, give both the same --token-file"
        )


def test_a_token_is_no_trouble_where_none_is_asked_for(token_file: Path) -> None:
    with threaded() as server:
        use_all(server, read_access(token_file))


def test_whether_the_token_is_asked_for_can_be_known(
    secured: Threaded, token_file: Path, other_token: Path, certificates: Path
) -> None:
    assert demands_token(secured.address, read_access(token_file, **certified(certificates)))
    with threaded(token_file=token_file) as server:
        assert demands_token(server.address, read_access(token_file))
        assert demands_token(server.address, read_access(other_token))
    with threaded() as server:
        assert not demands_token(server.address, read_access(token_file))
    with threaded(**tls_fields(certificates)) as server:
        assert not demands_token(server.address, read_access(token_file, **certified(certificates)))
    with pytest.raises(UnreachableError):
        demands_token(server.address, read_access(token_file), timeout_s=1.0)


def test_over_tls_with_certificate_and_token_all_is_as_without(
    secured: Threaded, token_file: Path, certificates: Path
) -> None:
    use_all(secured, read_access(token_file, **certified(certificates)))
    assert secured.look(lambda lighthouse: lighthouse.tls_url or "").startswith("https://127.0.0.1:")


def test_tls_needs_the_token_too(secured: Threaded, certificates: Path) -> None:
    (said,) = refusals(secured, read_access(None, **certified(certificates)))
    assert "no_token" in said


def test_in_the_clear_a_server_with_tls_can_only_be_read(secured: Threaded, token_file: Path) -> None:
    (said,) = refusals(secured, read_access(token_file))
    assert said.endswith("needs_tls: this is only spoken over TLS here, give --tls-ca")
    assert status(secured.address)["jobs"] == []
    events = watch_events(secured.address)
    events.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ({"name": "own", "ca": "other"}, "its certificate is refused here"),
        ({"name": "foreign", "ca": "ca"}, "it does not take our certificate: give one of its own CA"),
        ({"name": None, "ca": "ca"}, "it asks for a certificate of its own CA: give one with --tls-cert"),
    ],
)
def test_the_wrong_ca_and_no_or_a_foreign_certificate_are_refused_in_a_sentence(
    secured: Threaded, token_file: Path, certificates: Path, paths: dict[str, Any], says: str
) -> None:
    own = certified(certificates, paths["name"] or "own", paths["ca"])
    if paths["name"] is None:
        own = {"ca": own["ca"]}
    for said in refusals(secured, read_access(token_file, **own)):
        assert says in said
        assert "\n" not in said


def test_without_a_ca_of_its_own_the_server_asks_for_no_certificate(
    token_file: Path, certificates: Path
) -> None:
    with threaded(token_file=token_file, **tls_fields(certificates, mutual=False)) as server:
        use_all(server, read_access(token_file, ca=certificates / "ca.pem"))


def test_a_client_with_tls_says_nothing_to_a_server_without(token_file: Path, certificates: Path) -> None:
    with threaded(token_file=token_file) as server:
        (said,) = refusals(server, read_access(token_file, **certified(certificates)))
        assert "does not speak TLS: start it with --tls-cert and --tls-key" in said


def test_the_port_for_tls_is_not_that_of_the_lighthouse(
    secured: Threaded, token_file: Path, certificates: Path
) -> None:
    port = secured.look(lambda lighthouse: (lighthouse.tls_url or "").rpartition(":")[2])
    with pytest.raises(LockedOutError, match=rf"TLS is spoken at 127\.0\.0\.1:{port}: give the .*open port"):
        status(f"127.0.0.1:{port}", access=read_access(token_file, **certified(certificates)))
    assert wrong_port(secured.address) is None


def test_a_group_needs_its_files_at_the_start_only(
    secured: Threaded, token_file: Path, certificates: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(certificates, tmp_path / "copy")
    access = read_access(token_file, **certified(own))
    shutil.rmtree(own)
    use_all(secured, access)
    # What is asked after TLS has failed, as where a firewall is in the way for a moment.
    assert access.tls is not None
    assert why_not(secured.look(lambda lighthouse: lighthouse.tls_url or "")[8:], access.tls) is None


def test_nobody_there_is_nobody_there(token_file: Path) -> None:
    with threaded(token_file=token_file) as server:
        address = server.address
    with pytest.raises(UnreachableError):
        drain(address, "job", 0, access=read_access(token_file))


def test_a_stream_that_was_open_outlives_a_server_with_another_token(
    token_file: Path, other_token: Path
) -> None:
    with threaded(token_file=token_file) as server:
        port = int(server.address.rpartition(":")[2])
        stream = AttachStream(server.address, hello(), access=read_access(token_file))
        stream.open(WAIT_S)
    with stream:
        with threaded(port=port, token_file=other_token) as server:
            while not server.look(lambda lighthouse: lighthouse.coordinator.turned_away.by_method["Attach"]):
                pass
            assert stream.refusal is None
        with threaded(port=port, token_file=token_file) as server:
            server.wait(lambda slot: slot is not None and bool(slot.lines))


def test_what_the_files_lack_is_told(certificates: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="cannot be read"):
        read_access(tmp_path / "gone")
    with pytest.raises(TlsError, match="without --tls-ca"):
        read_access(None, cert=certificates / "own.pem", key=certificates / "own.key")


def test_secrets_are_not_shown(token_file: Path, certificates: Path) -> None:
    shown = repr(read_access(token_file, **certified(certificates)))
    assert TOKEN not in shown
    assert "PRIVATE" not in shown
