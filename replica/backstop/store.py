"""The saves of one job at one place: which there are, which are whole, and which may go."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TypeVar

import xxhash

from replica.backstop.deadline import Deadline
from replica.backstop.files import Files, concerns_one_file, files_at, sentence_of
from replica.backstop.manifest import FILE_NAME, MAX_MANIFEST_BYTES, FileEntry, Manifest
from replica.backstop.names import PARTIAL, TRASH, SaveName, trash_name
from replica.backstop.retention import superfluous
from replica.config import JOB_NAME
from replica.errors import UserError

METADATA = ".metadata"
T = TypeVar("T")
_CHUNK_BYTES = 4 << 20


class StoreError(Exception):
    """A store cannot be used, or what it holds is not usable. Its text is one sentence."""


class UnreadableError(StoreError):
    """One file or folder cannot be read, though the place that it lies in can."""


@dataclass(frozen=True, kw_only=True)
class Save:
    """A complete save: its manifest is valid and all its files have the sizes that it lists."""

    name: SaveName
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class Torn:
    """A folder that looks like a save and is none; `why` is one sentence.

    unreadable: it cannot be read now; what it holds may be well. published: it was a save once, and
    is damaged or another job's.
    """

    folder: str
    why: str
    unreadable: bool = False
    published: bool = False

    @property
    def quorum_id(self) -> int:
        """The quorum in its name, 0 where that is not the name of a save."""
        name = SaveName.parse(self.folder) or SaveName.parse_partial(self.folder)
        return 0 if name is None else name.quorum_id


@dataclass(frozen=True, kw_only=True)
class Purged:
    """The folders that were removed, trash aside; problem: why another was not, one sentence, or None."""

    folders: tuple[str, ...]
    problem: str | None


class Store:
    """The saves of job `job` below `url`, a local folder or an fsspec URL.

    Making one touches nothing, and raises what `files_at` raises. Its methods block, may be called on
    any thread, and raise StoreError when the place does not answer.
    """

    def __init__(self, url: str, job: str) -> None:
        if not JOB_NAME.fullmatch(job):
            raise UserError(f"job name {job!r} is not usable: use letters, digits, '.', '_' and '-'")
        self.url, self.job = url, job
        self.files: Files = files_at(url.rstrip("/") + "/" + job)
        self._written: dict[str, dict[str, int]] = {}

    def listed(self) -> list[Save | Torn]:
        """All saves, complete or torn, the newest first. Reads manifests and sizes, no data."""
        folders = self.folders()
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
        try:
            with self._explained_of_one(f"looking at {folder}"):
                sizes = self.files.sizes(folder)
                if FILE_NAME not in sizes:
                    return Torn(folder=folder, why=f"it has no {FILE_NAME}: its writing was not finished")
                data = self.read_file(f"{folder}/{FILE_NAME}", MAX_MANIFEST_BYTES)
        except UnreadableError as error:
            return Torn(folder=folder, why=f"it cannot be read: {error}", unreadable=True)
        try:
            manifest = Manifest.decode(data)
        except ValueError as error:
            return Torn(folder=folder, why=str(error), published=True)
        if wrong := _mismatch(folder, self.job, manifest, sizes):
            return Torn(folder=folder, why=wrong, published=True)
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
        try:
            with self._explained_of_one(f"reading {path}"), self.files.open_to_read(path) as file:
                for chunk in _chunks(file):
                    length += len(chunk)
                    checksum.update(chunk)
        except UnreadableError as error:
            is_missing = isinstance(error.__cause__, FileNotFoundError)
            return f"{path} is missing" if is_missing else f"{path} cannot be read: {error}"
        if length != entry.bytes:
            return f"{path} has {length} bytes, not {entry.bytes}"
        if checksum.hexdigest() != entry.xxh3_128:
            return f"{path} does not have the bytes that were written: its checksum differs"
        return None

    def published(self) -> list[SaveName]:
        """Names of the saves that were published, the newest first; by listing alone, nothing is opened.

        Those that names and sizes show to be torn are not among them, nor those that cannot be listed.
        """
        return self._whole(self._seen(self.folders()))

    def note_written(self, manifest: Manifest) -> None:
        """Remember what a save of this process holds, so that `published` knows it when it is torn."""
        self._written[manifest.name.text] = {entry.name: entry.bytes for entry in manifest.files}

    def folders(self) -> list[str]:
        """All names below the job's folder, saves or not."""
        with self.explained("listing saves"):
            return self.files.names("")

    def _seen(self, folders: Iterable[str]) -> dict[SaveName, dict[str, int] | None]:
        """Files and sizes in the folders that bear a save's name; None where that one is unreadable."""
        return {name: self._sizes(name.text) for name in map(SaveName.parse, folders) if name is not None}

    def _sizes(self, folder: str) -> dict[str, int] | None:
        try:
            with self._explained_of_one(f"looking at {folder}"):
                return self.files.sizes(folder)
        except UnreadableError:
            return None

    def _whole(self, seen: Mapping[SaveName, dict[str, int] | None]) -> list[SaveName]:
        whole = [
            name
            for name, sizes in seen.items()
            if sizes is not None and _looks_whole(sizes, self._written.get(name.text, {}))
        ]
        return sorted(whole, key=lambda name: (name.order, name.text), reverse=True)

    def purge(self, own: SaveName, keep: int) -> Purged:
        """Remove what the newest `keep` published saves make superfluous.

        Called by the writer of `own` when it is published. One folder that cannot be removed does
        not keep the others; one that cannot be looked at stays, since it may be well.
        """
        folders = self.folders()
        self._written = {name: sizes for name, sizes in self._written.items() if name in folders}
        seen = self._seen(folders)
        unreadable = {name.text for name, sizes in seen.items() if sizes is None}
        readable = (folder for folder in folders if folder not in unreadable)
        gone, problems = [], []
        for folder in superfluous(readable, self._whole(seen), keep=keep, own=own):
            try:
                self.remove(folder)
            except StoreError as error:
                problems.append(str(error))
                continue
            if not folder.startswith(TRASH):
                gone.append(folder)
        return Purged(folders=tuple(gone), problem=problems[0] if problems else None)

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

    def bounded(self, doing: str, deadline: Deadline | None, work: Callable[[], T]) -> T:
        """What `work` returns. Raises StoreError where it is not done by the deadline, also where the
        place hangs: the thread that hangs with it is left behind. None: it has all the time it takes."""
        with self.explained(doing):
            return work() if deadline is None else deadline.run(work)

    @contextmanager
    def _explained_of_one(self, doing: str) -> Iterator[None]:
        """As `explained`; raises UnreadableError where the place is well but for one file."""
        with self.explained(doing):
            try:
                yield
            except OSError as error:
                if not concerns_one_file(error):
                    raise
                self.files.names("")  # a place that is gone as a whole raises here
                raise UnreadableError(sentence_of(error)) from error


def _looks_whole(sizes: Mapping[str, int], written: Mapping[str, int]) -> bool:
    """Whether a folder can be a complete save, as far as names and sizes tell.

    written: what is known of its files, if this process wrote it. Each save has metadata and a
    manifest, and tensors beside them.
    """
    non_empty = {name for name, size in sizes.items() if size > 0}
    if not {FILE_NAME, METADATA} < non_empty:
        return False
    return all(sizes.get(name) == size for name, size in written.items())


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


def _chunks(file: IO[bytes]) -> Iterable[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
