"""The few operations on folders and files that a store of saves needs: on a local path, or through fsspec."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from replica.backstop.deadline import TooLateError
from replica.error_line import one_line
from replica.errors import RestartError, UserError

_BUFFER_BYTES = 1 << 16
_PACKAGES = {
    "s3": "headway[s3]",
    "s3a": "headway[s3]",
    "gs": "headway[gcs]",
    "gcs": "headway[gcs]",
    "abfs": "adlfs",
    "az": "adlfs",
}
# What libraries of remote stores call it when the server is there, and lets nobody in.
_LOCKED_OUT = frozenset(
    {
        "AuthenticationException",
        "BadHostKeyException",
        "ClientAuthenticationError",
        "DefaultCredentialsError",
        "LogonFailure",
        "NoCredentialsError",
        "error_perm",
    }
)
_OF_ONE_FILE = frozenset({errno.EIO, errno.ELOOP, errno.ESTALE, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA})
_OBJECT_STORES = frozenset({*_PACKAGES, "adl", "abfss", "oci", "oss", "r2", "memory"})


class Files(Protocol):
    """Folders of files below one root. Paths are relative to it, with "/" between the parts.

    All methods block. They raise OSError, or whatever the library of a remote store raises.
    """

    renames_folders: bool

    def where(self, path: str) -> str:
        """The path as people know it, for messages."""

    def names(self, path: str) -> list[str]:
        """Names in a folder; none where there is no such folder."""

    def sizes(self, path: str) -> dict[str, int]:
        """Files of a folder, by name, with their lengths in bytes; none where there is no such folder."""

    def make_folder(self, path: str) -> None:
        """Make a folder that must not exist yet, and its parents."""

    def open_to_read(self, path: str) -> IO[bytes]:
        """Open a file; it can be sought."""

    def open_to_write(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """A context manager that yields a new file; when it ends well, its bytes are durable."""

    def rename_folder(self, path: str, new_path: str) -> None:
        """Rename a folder, durably, where `renames_folders`."""

    def remove_file(self, path: str) -> None:
        """Remove a file; it is no trouble when there is none."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder and all in it; it is no trouble when there is none."""


class LocalFiles:
    """Files below a local folder. What is written is synced, and so are the folders it lies in."""

    renames_folders = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def where(self, path: str) -> str:
        return str(self._root / path)

    def names(self, path: str) -> list[str]:
        try:
            return os.listdir(self._root / path)
        except FileNotFoundError:
            return []

    def sizes(self, path: str) -> dict[str, int]:
        found = {}
        try:
            with os.scandir(self._root / path) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        found[entry.name] = entry.stat(follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return found

    def make_folder(self, path: str) -> None:
        folder = self._root / path
        new = [parent for parent in folder.parents if not parent.exists()]
        folder.parent.mkdir(parents=True, exist_ok=True)
        for parent in new:
            _sync(parent.parent)
        folder.mkdir()

    def open_to_read(self, path: str) -> IO[bytes]:
        return open(self._root / path, "rb")

    @contextmanager
    def open_to_write(self, path: str) -> Iterator[IO[bytes]]:
        with open(self._root / path, "xb", buffering=_BUFFER_BYTES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def rename_folder(self, path: str, new_path: str) -> None:
        # The entries of the folder itself first: after a crash of the machine, what bears the new
        # name has all its files.
        _sync(self._root / path)
        os.rename(self._root / path, self._root / new_path)
        _sync((self._root / new_path).parent)

    def remove_file(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def remove_folder(self, path: str) -> None:
        try:
            shutil.rmtree(self._root / path)
        except FileNotFoundError:  # of it or of something in it: another one removes it too
            shutil.rmtree(self._root / path, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; its entries are durable there as they are.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


class RemoteFiles:
    """Files at a store that fsspec reaches. A file there is seen only when it is complete."""

    renames_folders = False

    def __init__(self, filesystem: Any, root: str, url: str) -> None:
        self._filesystem, self._root, self._url = filesystem, root.rstrip("/"), url.rstrip("/")

    def where(self, path: str) -> str:
        return f"{self._url}/{path}"

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _entries(self, path: str) -> list[dict[str, Any]]:
        try:
            return list(self._filesystem.ls(self._path(path), detail=True))
        except FileNotFoundError:
            return []

    def names(self, path: str) -> list[str]:
        return [_last(entry) for entry in self._entries(path)]

    def sizes(self, path: str) -> dict[str, int]:
        entries = self._entries(path)
        return {_last(entry): int(entry["size"] or 0) for entry in entries if entry["type"] == "file"}

    def make_folder(self, path: str) -> None:
        if self.sizes(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.where(path))
        # An object store has no folders; asked for one, some would make a bucket.
        if self._url.partition("://")[0] not in _OBJECT_STORES:
            self._filesystem.makedirs(self._path(path), exist_ok=True)

    def open_to_read(self, path: str) -> IO[bytes]:
        found: IO[bytes] = self._filesystem.open(self._path(path), "rb")
        return found

    @contextmanager
    def open_to_write(self, path: str) -> Iterator[IO[bytes]]:
        with self._filesystem.open(self._path(path), "wb") as file:
            yield file

    def rename_folder(self, path: str, new_path: str) -> None:
        raise NotImplementedError("a folder of a remote store is not renamed")

    def remove_file(self, path: str) -> None:
        try:
            self._filesystem.rm_file(self._path(path))
        except FileNotFoundError:
            return

    def remove_folder(self, path: str) -> None:
        try:
            self._filesystem.rm(self._path(path), recursive=True)
        except FileNotFoundError:
            return


def _last(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]


def files_at(url: str) -> Files:
    """The files at a local path or an fsspec URL.

    Raises UserError for one that cannot be used here, and RestartError where the server that it names
    must be reached at once and cannot be. Blocks there.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme in ("file", "local"):
        try:
            return LocalFiles(Path(rest if separator else url).expanduser().absolute())
        except RuntimeError as error:  # the home of a user who is not known
            raise UserError(f"backstop url {url} cannot be used: {sentence_of(error)}") from None
    import fsspec.core  # type: ignore[import-untyped]

    try:
        try:
            # Others write to the same place: what was there a moment ago says nothing.
            filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except TypeError:  # SFTP, for one, keeps no listings, and does not know the option
            filesystem, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(scheme, f"the fsspec package for {scheme}")
        raise UserError(f"backstop url {url}: install {package} to use it ({sentence_of(error)})") from None
    except Exception as error:  # whatever the library of a remote store raises, which may connect here
        if _is_of_the_user(error):
            raise UserError(f"backstop url {url} cannot be used: {sentence_of(error)}") from None
        raise RestartError(f"backstop url {url} cannot be reached: {sentence_of(error)}") from None
    return RemoteFiles(filesystem, root, url)


def _is_of_the_user(error: Exception) -> bool:
    """Whether it stays as long as nobody changes URL or rights, and does not pass by itself."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, (ValueError, TypeError, PermissionError)) or not _LOCKED_OUT.isdisjoint(names)


def sentence_of(error: BaseException) -> str:
    """What an error of a file system says, on one line of bounded length."""
    if isinstance(error, OSError) and error.errno is not None:
        place = f" ({error.filename})" if error.filename else ""
        hint = ": make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return f"{error.strerror or errno.errorcode.get(error.errno, 'error')}{place}{hint}"[:500]
    return str(error) if isinstance(error, TooLateError) else one_line(error)


def concerns_one_file(error: OSError) -> bool:
    """Whether an error can be that of one file or folder alone: broken, forbidden, or gone.

    Not those of a network, of a time limit, or of this process.
    """
    kinds = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
    return isinstance(error, kinds) or error.errno in _OF_ONE_FILE
