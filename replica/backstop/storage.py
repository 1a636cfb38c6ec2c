"""The files of a save as torch.distributed.checkpoint writes them, hashed on their way to the store."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import IO, Any, cast

import torch
import xxhash
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from replica.backstop.files import Files
from replica.backstop.manifest import FileEntry
from replica.backstop.store import METADATA
from replica.backstop.unpickling import PROTOCOL
from replica.transfer.memory import flat_bytes, view

_FORMAT_VERSION = "1.0.0"  # of DCP's files, as its own writer stamps them
_PIECE_BYTES = 1 << 20


class HashingStream:
    """A file that is written once, from beginning to end; it knows the checksum of what went through.

    failure: the error of the store that ended the writing; torch.save itself would tell another one.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._hash, self._bytes = raw, xxhash.xxh3_128(), 0
        self.failure: Exception | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`, in pieces, so that other threads get their turn."""
        whole = memoryview(data).cast("B")
        for start in range(0, len(whole), _PIECE_BYTES):
            piece = whole[start : start + _PIECE_BYTES]
            self._hash.update(piece)
            try:
                self._raw.write(piece)
            except Exception as error:
                self.failure = self.failure or error
                raise
        self._bytes += len(whole)
        return len(whole)

    def flush(self) -> None:
        """Nothing: the file is made durable at its end."""

    def tell(self) -> int:
        """Bytes written so far."""
        return self._bytes

    def entry(self, name: str) -> FileEntry:
        """What the manifest says of this file."""
        return FileEntry(name=name, bytes=self._bytes, xxh3_128=self._hash.hexdigest())


class SaveWriter(StorageWriter):
    """Writes one file of tensors per rank, and `.metadata` on rank 0, into a folder that is new.

    bounded: runs a piece of work that touches the store; it raises StoreError, and nothing else,
    since what is raised here travels to the other ranks. The files can be read by
    torch.distributed.checkpoint itself. `files` lists what this rank has written;
    `made_folder` tells, on rank 0, that the folder is its own to remove.
    """

    def __init__(self, files: Files, folder: str, bounded: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._store_files, self._folder, self._bounded = files, folder, bounded
        self.files: list[FileEntry] = []
        self.made_folder = False

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing: a writer writes one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Make the folder, on rank 0; the other ranks write when that is done."""
        if is_coordinator:
            self._bounded("making a folder", lambda: self._store_files.make_folder(self._folder))
            self.made_folder = True

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank's file its name."""
        return [
            dataclasses.replace(plan, storage_data=f"__{rank}_0.distcp") for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors. Blocks; the future is done."""
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._bounded("writing tensors", lambda: self._write_tensors(plan, planner)))
        return done

    def _write_tensors(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        if not plan.items:
            return []
        name = str(plan.storage_data)
        with self._store_files.open_to_write(f"{self._folder}/{name}") as raw:
            stream = HashingStream(raw)
            try:
                results = [_write_item(stream, name, item, planner) for item in plan.items]
            except RuntimeError as error:
                raise stream.failure or error from None
        self.files.append(stream.entry(name))
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write `.metadata`, on rank 0, when all ranks have written."""
        metadata.version = _FORMAT_VERSION
        metadata.storage_data = {result.index: result.storage_data for part in results for result in part}
        data = pickle.dumps(metadata, PROTOCOL)
        self._bounded("writing metadata", lambda: self._write_metadata(data))

    def _write_metadata(self, data: bytes) -> None:
        with self._store_files.open_to_write(f"{self._folder}/{METADATA}") as raw:
            stream = HashingStream(raw)
            stream.write(data)
        self.files.append(stream.entry(METADATA))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Nobody asks: the folder is given to the constructor."""
        return True


def _write_item(stream: HashingStream, name: str, item: WriteItem, planner: SavePlanner) -> WriteResult:
    start = stream.tell()
    torch.save(_with_storage_of_its_own(planner.resolve_data(item)), cast(IO[bytes], stream))
    info = _StorageInfo(relative_path=name, offset=start, length=stream.tell() - start)
    return WriteResult(index=item.index, size_in_bytes=info.length, storage_data=info)


def _with_storage_of_its_own(data: Any) -> torch.Tensor:
    """The tensor, without what else its storage holds: torch.save writes whole storages.

    The bytes are not copied where the tensor is contiguous.
    """
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"a {type(data).__name__} cannot be saved: only tensors can")
    tensor = data.detach()
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    flat = torch.frombuffer(view(flat_bytes(tensor)), dtype=torch.uint8)
    return flat.view(tensor.dtype).reshape(tensor.shape)
