"""The saves of one job at one place: which there are, which are whole, and which may go."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import xxhash

from replica.backstop.files import Files, files_at
from replica.backstop.manifest import FILE_NAME, MAX_MANIFEST_BYTES, FileEntry, Manifest
from replica.backstop.names import PARTIAL, TRASH, SaveName, trash_name
from replica.config import JOB_NAME
from replica.errors import UserError

_CHUNK_BYTES = 4 << 20


class StoreError(Exception):
    """A store cannot be used, or what it holds is not usable. Its text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Save:
    """A complete save: its manifest is valid and all its files have the sizes that it lists."""

    name: SaveName
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class Torn:
    """A folder that looks like a save and is none; `why` is one sentence."""

    folder: str
    why: str


class Store:
    """The saves of job `job` below `url`, a local folder or an fsspec URL.

    Making one touches nothing; it raises UserError for a place that cannot be used here. Its
    methods block, may be called on any thread, and raise StoreError when the place does not answer.
    """

    def __init__(self, url: str, job: str) -> None:
        if not JOB_NAME.fullmatch(job):
            raise UserError(f"job name {job!r} is not usable: use letters, digits, '.', '_' and '-'")
        self.url, self.job = url, job
        self.files: Files = files_at(url.rstrip("/") + "/" + job)

    def listed(self) -> list[Save | Torn]:
        """All saves, complete or torn, the newest first. Reads manifests and sizes, no data."""
        with self.explained("listing saves"):
            folders = self.files.names("")
        named = {folder: SaveName.parse(folder) or SaveName.parse_partial(folder) for folder in folders}
        known = {folder: name for folder, name in named.items() if name is not None}
        newest_first = sorted(known, key=lambda folder: (known[folder].order, folder), reverse=True)
        strange = sorted(folder for folder in folders if folder not in known and folder.startswith("step-"))
        return [
            *(self._look_at(folder) for folder in newest_first),
            *(Torn(folder=folder, why="its name is not that of a save") for folder in strange),
        ]

    def _look_at(self, folder: str) -> Save | Torn:
        if folder.startswith(PARTIAL):
            return Torn(folder=folder, why="its writing was not finished")
        with self.explained(f"looking at {folder}"):
            sizes = self.files.sizes(folder)
            if FILE_NAME not in sizes:
                return Torn(folder=folder, why=f"it has no {FILE_NAME}: its writing was not finished")
            try:
                data = self.read_file(f"{folder}/{FILE_NAME}", MAX_MANIFEST_BYTES)
            except FileNotFoundError:
                return Torn(folder=folder, why="it was removed while it was looked at")
        try:
            manifest = Manifest.decode(data)
        except ValueError as error:
            return Torn(folder=folder, why=str(error))
        if wrong := _mismatch(folder, self.job, manifest, sizes):
            return Torn(folder=folder, why=wrong)
        return Save(name=manifest.name, manifest=manifest)

    def read_file(self, path: str, limit_bytes: int) -> bytes:
        """The bytes of a file, one more than the limit at most. Raises what the place raises."""
        with self.files.open_to_read(path) as file:
            return bytes(file.read(limit_bytes + 1))

    def verify(self, save: Save, part: tuple[int, int] = (0, 1)) -> list[str]:
        """Read a share of the files of a save, and tell what is wrong with them, a sentence each.

        part: (index, of) means files number index, index + of, ..., so that ranks can share the
        work. Reads as a stream, in bounded memory.
        """
        index, of = part
        problems = (self._problem_of(save, entry) for entry in save.manifest.files[index::of])
        return [problem for problem in problems if problem]

    def _problem_of(self, save: Save, entry: FileEntry) -> str | None:
        path, length, checksum = f"{save.name.text}/{entry.name}", 0, xxhash.xxh3_128()
        with self.explained(f"reading {path}"):
            try:
                with self.files.open_to_read(path) as file:
                    for chunk in _chunks(file):
                        length += len(chunk)
                        checksum.update(chunk)
            except FileNotFoundError:
                return f"{path} is missing"
        if length != entry.bytes:
            return f"{path} has {length} bytes, not {entry.bytes}"
        if checksum.hexdigest() != entry.xxh3_128:
            return f"{path} does not have the bytes that were written: its checksum differs"
        return None

    def published(self) -> list[SaveName]:
        """Names of the saves that were published, the newest first; by listing alone, nothing is opened."""
        names = (SaveName.parse(folder) for folder in self._folders())
        found = [name for name in names if name is not None and self._is_marked(name.text)]
        return sorted(found, key=lambda name: (name.order, name.text), reverse=True)

    def _is_marked(self, folder: str) -> bool:
        with self.explained(f"looking at {folder}"):
            return self.files.sizes(folder).get(FILE_NAME, 0) > 0

    def _folders(self) -> list[str]:
        with self.explained("listing saves"):
            return self.files.names("")

    def purge(self, own: SaveName, keep: int) -> tuple[str, ...]:
        """Remove what the newest `keep` published saves make superfluous; returns the folders removed.

        Called by the writer of `own` when it is published. What may be in flight stays: partial
        saves of the newest quorum id or a higher one, but for older ones of this very incarnation.
        """
        published = self.published()
        if not published:
            return ()
        kept, newest = {name.text for name in published[:keep]}, published[0]
        known = {name.text for name in published}
        removable = []
        for folder in self._folders():
            name = SaveName.parse(folder) or SaveName.parse_partial(folder)
            if folder in kept or (name is None and not folder.startswith(TRASH)):
                continue
            if folder in known or name is None or _cannot_be_in_flight(name, own, newest):
                removable.append(folder)
        for folder in sorted(removable):
            self.remove(folder)
        return tuple(sorted(folder for folder in removable if not folder.startswith(TRASH)))

    def remove(self, folder: str) -> None:
        """Remove the folder of a save, a partial one or trash, so that it is at no moment half a save."""
        with self.explained(f"removing {folder}"):
            if not self.files.renames_folders:
                # Without its marker it is no save any more, whatever becomes of the rest.
                self.files.remove_file(f"{folder}/{FILE_NAME}")
            elif not folder.startswith(TRASH):
                trash = trash_name(folder)
                self.files.remove_folder(trash)
                try:
                    self.files.rename_folder(folder, trash)
                except FileNotFoundError:
                    return
                folder = trash
            self.files.remove_folder(folder)

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Turn whatever the place raises into StoreError: one sentence that says what, where and why."""
        try:
            yield
        except (StoreError, UserError):
            raise
        except Exception as error:
            where = self.files.where("")
            raise StoreError(f"{doing} at {where} failed: {sentence_of(error)}") from error


def sentence_of(error: BaseException) -> str:
    """What an error of a file system says, on one line of bounded length."""
    if isinstance(error, OSError) and error.errno is not None:
        place = f" ({error.filename})" if error.filename else ""
        hint = ": make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return f"{error.strerror or errno.errorcode.get(error.errno, 'error')}{place}{hint}"[:500]
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def _mismatch(folder: str, job: str, manifest: Manifest, sizes: dict[str, int]) -> str | None:
    if manifest.name.text != folder:
        return f"its manifest is that of {manifest.name.text}"
    if manifest.facts.job != job:
        return f"its manifest is of job {manifest.facts.job[:80]}"
    for entry in manifest.files:
        if entry.name not in sizes:
            return f"{entry.name} is missing"
        if sizes[entry.name] != entry.bytes:
            return f"{entry.name} has {sizes[entry.name]} bytes, not {entry.bytes}"
    return None


def _cannot_be_in_flight(name: SaveName, own: SaveName, newest: SaveName) -> bool:
    mine = name.incarnation == own.incarnation and name.order < own.order
    return mine or name.quorum_id < newest.quorum_id


def _chunks(file: IO[bytes]) -> Iterable[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
