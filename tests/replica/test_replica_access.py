"""What a group shows, read from its files; and what it says at the start of what its settings leave open."""

from pathlib import Path

import pytest

from replica.access import access_of, what_is_open
from replica.config import GroupConfig
from replica.errors import UserError

TOKEN = "the secret of this job"


def config(**given: Path) -> GroupConfig:
    return GroupConfig(job="j", group=1, lighthouse="h:1", steps=9, micro_batches=4, **given)  # type: ignore[arg-type]


@pytest.fixture
def tls(certificates: Path) -> dict[str, Path]:
    files = {"tls_cert": "own.pem", "tls_key": "own.key", "tls_ca": "ca.pem"}
    return {name: certificates / file for name, file in files.items()}


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def test_what_is_in_the_files_is_shown(token: Path, tls: dict[str, Path]) -> None:
    nothing = access_of(config())
    assert (nothing.token, nothing.tls) == (b"", None)
    both = access_of(config(token_file=token, **tls))
    assert both.token == TOKEN.encode()
    assert both.tls is not None
    assert both.tls.ca == tls["tls_ca"].read_bytes()


def test_files_that_cannot_be_used_are_the_user_s_to_mend(tmp_path: Path, tls: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        access_of(config(token_file=tmp_path / "gone"))
    with pytest.raises(UserError, match="cannot be used"):
        access_of(config(**(tls | {"tls_key": tls["tls_ca"]})))


def test_what_is_open_is_said_and_what_is_not_is_not(token: Path, tls: dict[str, Path]) -> None:
    (all_open,) = what_is_open(config())
    assert "no --token-file" in all_open
    assert "no --tls-ca" in all_open
    assert what_is_open(config(token_file=token)) == ["no --tls-ca: the state of a heal travels in the clear"]
    assert what_is_open(config(token_file=token, **tls)) == []
    token.chmod(0o644)
    assert what_is_open(config(token_file=token, **tls)) == [
        f"every user of this host can read {token}: chmod 600 it"
    ]
