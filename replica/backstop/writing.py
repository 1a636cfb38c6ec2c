"""Writes one save: all ranks of a group together, in the background, published when all of it is durable."""

import contextlib
import importlib.metadata
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save

from replica.backstop.deadline import Deadline
from replica.backstop.files import sentence_of
from replica.backstop.manifest import FILE_NAME, Facts, FileEntry, Manifest
from replica.backstop.names import SaveName
from replica.backstop.storage import SaveWriter
from replica.backstop.store import Purged, Store, StoreError

T = TypeVar("T")
_CLEANING_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Written:
    """A save that is published: its bytes over all ranks, and the seconds that it took.

    purged: the folders that it made superfluous and that were removed. purge_problem: why some
    could not be removed, one sentence, or None.
    """

    bytes: int
    seconds: float
    purged: tuple[str, ...]
    purge_problem: str | None = None


class SaveFailedError(Exception):
    """A save was not made; earlier ones are untouched. Its text is one sentence."""


class Fenced(SaveFailedError):  # noqa: N818 (it is no error: another writer was right to go first)
    """A save was given up since a newer quorum has published one."""


def write_save(
    store: Store,
    name: SaveName,
    facts: Facts,
    tensors: Mapping[str, torch.Tensor],
    *,
    process_group: dist.ProcessGroup,
    keep: int,
    timeout_s: float,
) -> Written:
    """Write `tensors` as one save and publish it; then remove what it makes superfluous.

    Every rank of the group calls it, on a background thread, with its part of the state: copies in
    host memory that nobody changes meanwhile, DTensors where they are sharded. Blocks for at most
    `timeout_s` and a few seconds of clearing up, also when the store hangs: the thread that hangs
    with it is left behind. process_group: a gloo group of all ranks that nothing else uses, with a
    timeout longer than that. Opens no file for reading. Raises the same on all ranks: Fenced when a
    newer quorum has published, SaveFailedError for anything else that failed on any rank.
    """
    began_s = time.monotonic()
    work = _Work(store, name, Deadline(timeout_s), timeout_s)
    try:
        problem = work.write(tensors, process_group)
        written: list[list[FileEntry]] = [[] for _ in range(dist.get_world_size(process_group))]
        dist.all_gather_object(written, work.writer.files, group=process_group)
        verdict: list[Written | SaveFailedError | None] = [None]
        if dist.get_rank(process_group) == 0:
            files = [file for part in written for file in part]
            verdict = [
                work.publish(facts, files, keep, began_s) if problem is None else work.give_up(problem)
            ]
        dist.broadcast_object_list(verdict, src=dist.get_global_rank(process_group, 0), group=process_group)
    except RuntimeError as error:
        raise SaveFailedError(f"a rank of this group left save {name.text}: {sentence_of(error)}") from error
    if isinstance(verdict[0], Written):
        return verdict[0]
    raise verdict[0] or SaveFailedError(f"save {name.text} failed, and rank 0 did not say why")


class _Work:
    """The writing of one save by this rank; the store is only touched under the deadline."""

    def __init__(self, store: Store, name: SaveName, deadline: Deadline, timeout_s: float) -> None:
        self._store, self._name, self._deadline, self._timeout_s = store, name, deadline, timeout_s
        self._folder = name.partial if store.files.renames_folders else name.text
        self.writer = SaveWriter(store.files, self._folder, self._bounded)

    def _bounded(self, doing: str, work: Callable[[], T]) -> T:
        return self._store.bounded(doing, self._deadline, work)

    def write(self, tensors: Mapping[str, torch.Tensor], process_group: dist.ProcessGroup) -> str | None:
        """Write this rank's files, in step with the other ranks; returns why it failed, on all of them."""
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            save(dict(tensors), storage_writer=self.writer, planner=planner, process_group=process_group)
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            reason = str(cause) if isinstance(cause, StoreError) else sentence_of(cause)
            return reason if rank == 0 else f"rank {rank}: {reason}"
        return None

    def publish(
        self, facts: Facts, files: Sequence[FileEntry], keep: int, began_s: float
    ) -> Written | SaveFailedError:
        """On rank 0, when all ranks have written: let the save be seen, then purge."""
        try:
            manifest = Manifest(
                name=self._name,
                facts=facts,
                versions=_versions(),
                files=tuple(sorted(files, key=lambda f: f.name)),
            )
            data = manifest.encode()
            self._bounded("publishing a save", lambda: self._show(manifest, data))
            self._store.note_written(manifest)
        except (StoreError, ValueError) as error:
            return self.give_up(str(error))
        try:
            if (newer := self._bounded("looking for newer saves", self._newer)) is not None:
                return self._fenced(newer)
            purged = self._bounded("removing old saves", lambda: self._store.purge(self._name, keep))
        except StoreError as error:
            purged = Purged(folders=(), problem=str(error))
        return Written(
            bytes=manifest.bytes,
            seconds=time.monotonic() - began_s,
            purged=purged.folders,
            purge_problem=purged.problem,
        )

    def _show(self, manifest: Manifest, data: bytes) -> None:
        files, folder = self._store.files, self._folder
        sizes = files.sizes(folder)
        for entry in manifest.files:
            if sizes.get(entry.name) != entry.bytes:
                raise StoreError(
                    f"{files.where(folder)}/{entry.name} was written and is not there on rank 0: "
                    f"all ranks must reach the same folder, and nobody else may change it"
                )
        if files.renames_folders:
            self._write_manifest(data)
        if (newer := self._newer()) is not None:
            raise StoreError(f"{newer.text} is newer")
        if self._deadline.passed:
            raise self._deadline.missed()  # the save counts as failed, so it must not appear
        if files.renames_folders:
            files.rename_folder(folder, self._name.text)
        else:
            self._write_manifest(data)

    def _write_manifest(self, data: bytes) -> None:
        with self._store.files.open_to_write(f"{self._folder}/{FILE_NAME}") as file:
            file.write(data)

    def _newer(self) -> SaveName | None:
        published = self._store.published()
        return published[0] if published and published[0].quorum_id > self._name.quorum_id else None

    def give_up(self, problem: str) -> SaveFailedError:
        """On rank 0, when a rank failed: remove what was written. Returns why there is no save."""
        # A deadline of its own: what was left behind must find the old one passed.
        deadline, newer = Deadline(min(_CLEANING_S, self._timeout_s)), None
        with contextlib.suppress(StoreError):  # what is left there goes with a later purge
            newer = self._store.bounded("looking for newer saves", deadline, self._newer)
            if self.writer.made_folder:
                self._store.bounded(
                    "removing a partial save", deadline, lambda: self._store.remove(self._folder)
                )
        return self._fenced(newer) if newer else SaveFailedError(f"save {self._name.text} failed: {problem}")

    def _fenced(self, newer: SaveName) -> Fenced:
        return Fenced(f"save {self._name.text} was given up: a newer quorum has published {newer.text}")


def _versions() -> dict[str, str]:
    try:
        headway = importlib.metadata.version("headway")
    except importlib.metadata.PackageNotFoundError:
        headway = "unknown"
    return {"headway": headway, "torch": str(torch.__version__), "python": platform.python_version()}
