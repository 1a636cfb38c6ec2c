"""What is written below a local folder is durable before it is seen; an object store has no folders."""

import os
from pathlib import Path

import fsspec
import pytest

from replica.backstop.files import LocalFiles, RemoteFiles, files_at


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
    with files.open_to_write("partial/data") as file:
        file.write(b"abc")
        assert done == []
    files.rename_folder("partial", "final")
    assert done == ["sync data", "sync partial", "rename partial final", "sync root"]
    assert (tmp_path / "root" / "final" / "data").read_bytes() == b"abc"


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
