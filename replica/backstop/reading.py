"""Reads one save into the tensors of a group, which may have another number of ranks than its writers had."""

import dataclasses
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
import xxhash
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from replica.backstop.deadline import Deadline
from replica.backstop.files import sentence_of
from replica.backstop.store import METADATA, Save, Store, StoreError
from replica.backstop.unpickling import read_metadata
from replica.mesh import sibling_death_ends_the_group

T = TypeVar("T")


def read_save(
    store: Store,
    save: Save,
    tensors: Mapping[str, torch.Tensor],
    *,
    process_group: dist.ProcessGroup | None,
    rank: int,
    world_size: int,
    timeout_s: float | None = None,
) -> None:
    """Fill `tensors` (host memory, DTensors where they are sharded) in place from a save.

    A collective over process_group, None for a process on its own; every rank takes what it holds,
    however many ranks wrote the save. The save must hold exactly these names, types and full
    shapes. Checksums of the tensors' files are not checked here: `Store.verify` does that. timeout_s:
    how long the store may take; what hangs then is left behind, and changes no tensor. Raises
    StoreError on all ranks if any rank failed, the tensors being half filled then, and RestartError
    when a rank is gone.
    """
    with sibling_death_ends_the_group():
        metadata, problem = None, None
        deadline = None if timeout_s is None else Deadline(timeout_s)
        try:
            metadata = _metadata_of(store, save, deadline)
            _check_tensors(save, metadata, tensors)
        except StoreError as error:
            problem = str(error)
        _agree(problem, process_group, world_size)
        assert metadata is not None
        _load(dict(tensors), _SaveReader(store, save, metadata, deadline), process_group)


def contents_of(store: Store, save: Save) -> Mapping[str, torch.Tensor]:
    """The tensors that a save holds, by name, without their data: on torch's "meta" device.

    Reads its metadata. Raises StoreError where that cannot be read, or does not fit the save.
    """
    metadata = _metadata_of(store, save)
    saved: dict[str, Any] = metadata.state_dict_metadata
    for name, there in saved.items():
        _check_chunks(save, name, there, metadata)
    return {
        name: torch.empty(tuple(there.size), dtype=there.properties.dtype, device="meta")
        for name, there in saved.items()
    }


def read_part(store: Store, save: Save, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill `tensors` (whole, in host memory), some of those that a save holds, in place.

    For a process on its own, however many ranks wrote the save. Blocks. Raises StoreError where the
    save cannot be read or holds other types and shapes; the tensors may be half filled then.
    """
    metadata = _metadata_of(store, save)
    saved = metadata.state_dict_metadata
    wanted = {name: saved[name] for name in tensors if name in saved}
    part = dataclasses.replace(metadata, state_dict_metadata=wanted)
    _check_tensors(save, part, tensors)
    _load(dict(tensors), _SaveReader(store, save, part, None), None)


def _agree(problem: str | None, process_group: dist.ProcessGroup | None, world_size: int) -> None:
    """Raise on all ranks what any rank has found."""
    problems = [problem] * world_size
    if process_group is not None:
        dist.all_gather_object(problems, problem, group=process_group)
    for found in problems:
        if found is not None:
            raise StoreError(found)


def _load(tensors: dict[str, Any], reader: StorageReader, process_group: dist.ProcessGroup | None) -> None:
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    alone = process_group is None
    try:
        with warnings.catch_warnings():
            if alone:
                warnings.simplefilter("ignore")  # it warns of just that
            load(tensors, storage_reader=reader, planner=planner, process_group=process_group, no_dist=alone)
    except CheckpointException as error:
        cause = error.failures[min(error.failures)][0]
        raise StoreError(str(cause) if isinstance(cause, StoreError) else sentence_of(cause)) from None


def _metadata_of(store: Store, save: Save, deadline: Deadline | None = None) -> Metadata:
    """The checked metadata of a save: all that it names lies within the save's own files."""
    entries = {entry.name: entry for entry in save.manifest.files}
    place = f"{save.name.text}/{METADATA}"
    if METADATA not in entries:
        raise StoreError(f"{place} is missing: the save cannot be read")
    data = store.bounded(
        f"reading {place}", deadline, lambda: store.read_file(place, entries[METADATA].bytes)
    )
    if xxhash.xxh3_128_hexdigest(data) != entries[METADATA].xxh3_128:
        raise StoreError(f"{place} does not have the bytes that were written: its checksum differs")
    metadata = read_metadata(data, place=place)
    for info in metadata.storage_data.values():
        entry = entries.get(info.relative_path)
        if entry is None or info.offset + info.length > entry.bytes:
            raise StoreError(f"{place} refers to {info.relative_path[:80]!r} beyond what the save holds")
    return metadata


def _check_tensors(save: Save, metadata: Metadata, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise StoreError for the first tensor in which the save and the state differ."""
    saved: dict[str, Any] = metadata.state_dict_metadata
    for name in sorted(saved.keys() | tensors.keys()):
        if name not in tensors:
            raise StoreError(f"save {save.name.text} holds {name}, which this configuration does not have")
        if name not in saved:
            raise StoreError(f"save {save.name.text} does not hold {name}: it is of another configuration")
        there, here = saved[name], tensors[name]
        if (there.properties.dtype, tuple(there.size)) != (here.dtype, tuple(here.shape)):
            raise StoreError(
                f"{name} is {tuple(there.size)} {there.properties.dtype} in save {save.name.text} "
                f"and {tuple(here.shape)} {here.dtype} in this configuration"
            )
        _check_chunks(save, name, there, metadata)


def _check_chunks(save: Save, name: str, there: TensorStorageMetadata, metadata: Metadata) -> None:
    """Raise StoreError unless the chunks fill the tensor, and each lies somewhere."""
    inside = all(
        len(chunk.offsets) == len(chunk.sizes) == len(there.size)
        and all(o + s <= whole for o, s, whole in zip(chunk.offsets, chunk.sizes, there.size, strict=True))
        and MetadataIndex(name, chunk.offsets) in metadata.storage_data
        for chunk in there.chunks
    )
    if not inside or sum(math.prod(chunk.sizes) for chunk in there.chunks) != math.prod(there.size):
        raise StoreError(f"save {save.name.text} does not hold all of {name}")


class _SaveReader(StorageReader):
    """Reads what this rank holds, out of files whose places `metadata` tells. It raises StoreError only,
    since what is raised here travels to the other ranks."""

    def __init__(self, store: Store, save: Save, metadata: Metadata, deadline: Deadline | None) -> None:
        self._store, self._folder, self._metadata, self._deadline = store, save.name.text, metadata, deadline
        self._shapes = {
            MetadataIndex(name, chunk.offsets): chunk.sizes
            for name, tensor in metadata.state_dict_metadata.items()
            if isinstance(tensor, TensorStorageMetadata)
            for chunk in tensor.chunks
        }

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing: a reader reads one save."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata, which was read and checked before."""
        return self._metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to add."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's tensors, file by file. Blocks; the future is done."""
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._metadata.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in by_file.items():
            items.sort(key=lambda item: self._metadata.storage_data[item.storage_index].offset)
            with self._store.explained(f"reading {self._folder}/{name}"), self._open(name) as file:
                for item in items:
                    self._read_item(file, item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        path = f"{self._folder}/{name}"
        file = self._bounded(lambda: self._opened(path))
        try:
            yield file
        finally:
            if self._deadline is None or not self._deadline.passed:  # to close one that hangs would hang
                self._bounded(file.close)

    def _opened(self, path: str) -> IO[bytes]:
        file = self._store.files.open_to_read(path)
        if self._deadline is not None and self._deadline.passed:
            file.close()
            raise self._deadline.missed()
        return file

    def _bounded(self, work: Callable[[], T]) -> T:
        return work() if self._deadline is None else self._deadline.run(work)

    def _read_item(self, file: IO[bytes], item: ReadItem, planner: LoadPlanner) -> None:
        info = self._metadata.storage_data[item.storage_index]
        if item.type is not LoadItemType.TENSOR:
            _refuse(item, "is not a tensor")
        data = self._bounded(lambda: _read_at(file, info.offset, info.length))
        tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        target = planner.resolve_tensor(item).detach()
        if not isinstance(tensor, torch.Tensor) or tensor.shape != self._shapes[item.storage_index]:
            _refuse(item, "does not have the shape that the metadata tells")
        part = narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths)
        if part.dtype != target.dtype or part.shape != target.shape:
            _refuse(item, "does not have the type that the metadata tells")
        target.copy_(part)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Nobody asks: the save is given to the constructor."""
        return True


def _read_at(file: IO[bytes], offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


def _refuse(item: ReadItem, why: str) -> NoReturn:
    raise StoreError(f"{item.storage_index.fqn} in the save {why}")
