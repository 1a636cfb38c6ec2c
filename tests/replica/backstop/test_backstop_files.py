"""What is written below a local folder is durable before it is seen; an object store has no folders."""

import errno
import os
from ftplib import error_perm
from pathlib import Path
from typing import Any

import fsspec
import pytest

from replica.backstop.deadline import TooLateError
from replica.backstop.files import LocalFiles, RemoteFiles, concerns_one_file, files_at, sentence_of
from replica.errors import RestartError, UserError


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced and renamed, in order."""
    found: list[str] = []
    rename, fsync = os.rename, os.fsync

    def note_sync(descriptor: int) -> None:
        found.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def note_rename(path: Path, new_path: Path) -> None:
        found.append(f"rename {path.name} {new_path.name}")
        rename(path, new_path)

    monkeypatch.setattr("os.fsync", note_sync)
    monkeypatch.setattr("os.rename", note_rename)
    return found


def test_files_then_their_folder_then_its_name(tmp_path: Path, done: list[str]) -> None:
    files = LocalFiles(tmp_path / "root")
    files.make_folder("partial")
    done.clear()
    with files.open_to_write("partial/data") as file:
        file.write(b"abc")
        assert done == []
    files.rename_folder("partial", "final")
    assert done == ["sync data", "sync partial", "rename partial final", "sync root"]
    assert (tmp_path / "root" / "final" / "data").read_bytes() == b"abc"


def test_new_folders_above_are_durable_in_the_ones_that_they_lie_in(tmp_path: Path, done: list[str]) -> None:
    files = LocalFiles(tmp_path / "saves" / "job")
    files.make_folder("partial")
    assert sorted(done) == sorted([f"sync {tmp_path.name}", "sync saves"])
    done.clear()
    files.make_folder("another")
    assert done == []


def test_a_file_is_written_once(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with files.open_to_write("data") as file:
        file.write(b"abc")
    with pytest.raises(FileExistsError), files.open_to_write("data"):
        pass
    files.make_folder("folder")
    with pytest.raises(FileExistsError):
        files.make_folder("folder")


def test_what_is_not_there_is_empty_and_can_be_removed(tmp_path: Path) -> None:
    for files in (LocalFiles(tmp_path / "root"), files_at("memory://nothing/here")):
        assert files.names("") == []
        assert files.sizes("folder") == {}
        files.remove_file("file")
        files.remove_folder("folder")


def test_links_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "there")
    assert LocalFiles(tmp_path).sizes("folder") == {}


def test_local_paths_in_all_spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in ("saves/waves", f"file://{tmp_path}/saves/waves", "~/saves/waves", f"{tmp_path}/saves/waves"):
        assert files_at(url).where("x") == f"{tmp_path}/saves/waves/x"


def test_an_object_store_is_asked_for_no_folder() -> None:
    class NoFolders(type(fsspec.filesystem("memory"))):  # type: ignore[misc]
        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            raise AssertionError("an object store may make a bucket of it")

    RemoteFiles(NoFolders(), "bucket/root", "s3://bucket/root").make_folder("folder")
    with pytest.raises(AssertionError):
        RemoteFiles(NoFolders(), "root", "sftp://host/root").make_folder("folder")


def test_a_file_system_that_does_not_know_of_listings_kept_can_be_used(tmp_path: Path) -> None:
    class Strict(type(fsspec.filesystem("file"))):  # type: ignore[misc]
        protocol = "strict"
        cachable = False

        def __init__(self, **options: Any) -> None:
            if options:
                raise TypeError(f"connect() got an unexpected keyword argument {next(iter(options))!r}")
            super().__init__()

    fsspec.register_implementation("strict", Strict, clobber=True)
    (tmp_path / "there").mkdir()
    assert files_at(f"strict://{tmp_path}").names("") == ["there"]


@pytest.mark.parametrize(
    ("error", "of_one"),
    [
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (PermissionError(errno.EACCES, "Permission denied"), True),
        (PermissionError("Forbidden"), True),
        (FileNotFoundError("bucket/key"), True),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), False),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (OSError("something else"), False),
    ],
)
def test_which_errors_are_of_one_file(error: OSError, of_one: bool) -> None:
    assert concerns_one_file(error) == of_one


class AuthenticationException(RuntimeError):  # noqa: N818 (as paramiko calls it)
    pass


class Connects(type(fsspec.filesystem("memory"))):  # type: ignore[misc]
    """A file system that meets its trouble when it is made."""

    protocol = "connects"
    cachable = False
    trouble: Exception

    def __init__(self, **options: Any) -> None:
        raise self.trouble


@pytest.mark.parametrize(
    ("trouble", "raised", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), RestartError, "cannot be reached"),
        (EOFError("gone"), RestartError, "cannot be reached"),
        (RuntimeError("Error reading SSH protocol banner"), RestartError, "cannot be reached"),
        (AuthenticationException("Authentication failed."), UserError, "cannot be used: Auth"),
        (error_perm("530 Login incorrect"), UserError, "cannot be used: error_perm: 530 Login incorrect"),
        (PermissionError(errno.EACCES, "Permission denied"), UserError, "cannot be used"),
        (ValueError("no such option"), UserError, "cannot be used: ValueError: no such option"),
        (TypeError("missing 1 required positional argument: 'host'"), UserError, "cannot be used"),
        (ImportError("no module"), UserError, "install the fsspec package for connects"),
    ],
)
def test_a_server_that_is_away_is_no_mistake_of_the_user(
    trouble: Exception, raised: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("connects", Connects, clobber=True)
    monkeypatch.setattr(Connects, "trouble", trouble, raising=False)
    with pytest.raises(raised, match=f"^backstop url connects://h/x.* *{words}"):
        files_at("connects://h/x")


def test_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(UserError, match="~nobody-here/x cannot be used"):
        files_at("~nobody-here/x")


def test_sentences_of_errors() -> None:
    assert sentence_of(OSError(errno.EIO, "Input/output error", "/a/b")) == "Input/output error (/a/b)"
    assert sentence_of(OSError(errno.ENOSPC, "No space left")).endswith(": make room there")
    assert sentence_of(ValueError("two\nlines")) == "ValueError: two"
    assert sentence_of(TooLateError("it did not end")) == "it did not end"
