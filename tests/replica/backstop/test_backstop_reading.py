"""A save is read only where it holds exactly the state that is asked for; otherwise all ranks say why not."""

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from backstop_processes import Group
from backstop_rank import JOB
from backstop_states import KINDS, bytes_of, full
from backstop_stores import TroubledFiles

from replica.backstop.manifest import FILE_NAME, Manifest
from replica.backstop.reading import read_save
from replica.backstop.store import Save, Store, StoreError
from replica.backstop.unpickling import PROTOCOL, read_metadata

NAME = f"step-{3:012d}-quorum-{1:012d}-00000001"


@pytest.fixture
def folder(rank_processes: Group, tmp_path: Path) -> Path:
    """A save, written by two ranks."""
    rank_processes.ask("save", str(tmp_path), step=3, quorum_id=1, of=2)
    return tmp_path / JOB / NAME


def errors(rank_processes: Group, folder: Path, kinds: Any = KINDS, of: int = 2) -> str:
    """What all ranks say, the same."""
    answers = rank_processes.ask("load", str(folder.parents[1]), folder=NAME, of=of, kinds=kinds)
    assert [answer["error"] for answer in answers] == ["StoreError"] * of
    assert len({answer["text"] for answer in answers}) == 1
    return str(answers[0]["text"])


def test_the_state_must_be_the_same_by_name_type_and_shape(rank_processes: Group, folder: Path) -> None:
    first, *rest = KINDS
    said = errors(rank_processes, folder, rest)
    assert "holds parameter.weight, which this configuration does not have" in said
    said = errors(rank_processes, folder, [*KINDS, ("parameter.new", torch.float32, (3,))])
    assert "does not hold parameter.new" in said
    said = errors(rank_processes, folder, [(first[0], torch.float16, first[2]), *rest])
    assert "parameter.weight is (7, 5) torch.float32 in save" in said
    assert "and (7, 5) torch.float16 in this configuration" in said
    said = errors(rank_processes, folder, [(first[0], first[1], (5, 7)), *rest])
    assert "(5, 7) torch.float32 in this configuration" in said


def rewrite(folder: Path, file: str, data: bytes) -> None:
    """Change a file, and the manifest with it, as somebody would who means it."""
    (folder / file).write_bytes(data)
    manifest = Manifest.decode((folder / FILE_NAME).read_bytes())
    files = tuple(
        type(entry)(name=entry.name, bytes=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))
        if entry.name == file
        else entry
        for entry in manifest.files
    )
    changed = Manifest(name=manifest.name, facts=manifest.facts, versions=manifest.versions, files=files)
    (folder / FILE_NAME).write_bytes(changed.encode())


def test_metadata_with_another_checksum_is_not_even_unpickled(rank_processes: Group, folder: Path) -> None:
    data = bytearray((folder / ".metadata").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / ".metadata").write_bytes(data)
    assert "its checksum differs" in errors(rank_processes, folder)


class Planted:
    """Pickled, it is the call of a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def test_a_planted_call_is_refused_on_all_ranks(rank_processes: Group, folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    rewrite(folder, ".metadata", pickle.dumps(Planted(exec, (f"open({str(marker)!r}, 'w')",)), PROTOCOL))
    assert "it names builtins.exec, which no save needs" in errors(rank_processes, folder)
    rewrite(folder, "__0_0.distcp", pickle.dumps(Planted(exec, (f"open({str(marker)!r}, 'w')",)), PROTOCOL))
    assert not marker.exists()


def test_planted_tensors_are_refused_and_run_nothing(
    rank_processes: Group, folder: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    metadata = read_metadata((folder / ".metadata").read_bytes(), place="there")
    planted = tmp_path / "planted"
    torch.save(Planted(exec, (f"open({str(marker)!r}, 'w')",)), planted)
    whole = (folder / "__0_0.distcp").read_bytes()
    for index, info in metadata.storage_data.items():
        if index.fqn == "parameter.weight" and info.relative_path == "__0_0.distcp":
            info.offset, info.length = len(whole), planted.stat().st_size
    rewrite(folder, "__0_0.distcp", whole + planted.read_bytes())
    rewrite(folder, ".metadata", pickle.dumps(metadata, PROTOCOL))
    assert "Unsupported" in errors(rank_processes, folder) or "Weights only load failed" in errors(
        rank_processes, folder
    )
    assert not marker.exists()


@pytest.mark.parametrize("path", ["../../outside", "/etc/passwd", "__9_0.distcp", FILE_NAME])
def test_metadata_cannot_lead_out_of_the_save(rank_processes: Group, folder: Path, path: str) -> None:
    metadata = read_metadata((folder / ".metadata").read_bytes(), place="there")
    next(iter(metadata.storage_data.values())).relative_path = path
    rewrite(folder, ".metadata", pickle.dumps(metadata, PROTOCOL))
    assert "beyond what the save holds" in errors(rank_processes, folder)


def test_a_tensor_that_is_not_all_there_is_refused(rank_processes: Group, folder: Path) -> None:
    metadata = read_metadata((folder / ".metadata").read_bytes(), place="there")
    metadata.state_dict_metadata["parameter.weight"].chunks.pop()  # type: ignore[union-attr]
    rewrite(folder, ".metadata", pickle.dumps(metadata, PROTOCOL))
    assert "does not hold all of parameter.weight" in errors(rank_processes, folder)


def test_a_tensor_of_another_shape_than_told_is_refused(rank_processes: Group, folder: Path) -> None:
    metadata = read_metadata((folder / ".metadata").read_bytes(), place="there")
    places = {index.fqn: info for index, info in metadata.storage_data.items() if not sum(index.offset or ())}
    weight, other = places["parameter.weight"], places["parameter.eight"]
    if weight.relative_path == other.relative_path:
        weight.offset, weight.length = other.offset, other.length
    rewrite(folder, ".metadata", pickle.dumps(metadata, PROTOCOL))
    assert "parameter.weight in the save does not have the shape" in errors(rank_processes, folder)


def test_a_tensor_of_another_type_than_told_is_refused(rank_processes: Group, folder: Path) -> None:
    metadata = read_metadata((folder / ".metadata").read_bytes(), place="there")
    places = {index.fqn: index for index in metadata.storage_data}
    assert (
        metadata.state_dict_metadata["buffer.mask"].size == metadata.state_dict_metadata["buffer.phase"].size
    )  # type: ignore[union-attr]
    metadata.storage_data[places["buffer.phase"]] = metadata.storage_data[places["buffer.mask"]]
    rewrite(folder, ".metadata", pickle.dumps(metadata, PROTOCOL))
    assert "buffer.phase in the save does not have the type" in errors(rank_processes, folder)


def test_a_file_that_is_gone_on_one_rank_fails_on_all(rank_processes: Group, folder: Path) -> None:
    data = (folder / "__1_0.distcp").read_bytes()
    (folder / "__1_0.distcp").write_bytes(bytes(len(data)))
    said = errors(rank_processes, folder)
    assert f"reading {NAME}/__1_0.distcp" in said


def test_one_process_can_read_without_a_group(folder: Path) -> None:
    store = Store(str(folder.parents[1]), JOB)
    (save,) = store.listed()
    assert isinstance(save, Save)
    tensors = {name: torch.zeros(shape).to(dtype) for name, dtype, shape in KINDS}
    read_save(store, save, tensors, process_group=None, rank=0, world_size=1)
    assert bytes_of(tensors) == bytes_of({name: full(name, dtype, shape, 3) for name, dtype, shape in KINDS})


@pytest.mark.parametrize("file", [".metadata", "__1_0.distcp"])
def test_a_store_that_hangs_is_given_up_in_time(folder: Path, file: str) -> None:
    store, healed = Store(str(folder.parents[1]), JOB), threading.Event()
    (save,) = store.listed()
    assert isinstance(save, Save)

    def meet(doing: str, path: str) -> None:
        if path.endswith(file):
            healed.wait()

    store.files = TroubledFiles(store, meet)  # type: ignore[assignment]
    tensors = {name: torch.zeros(shape).to(dtype) for name, dtype, shape in KINDS}
    with pytest.raises(StoreError, match=rf"reading {NAME}/{file} at .* not done within 0\.2 s"):
        read_save(store, save, tensors, process_group=None, rank=0, world_size=1, timeout_s=0.2)
    healed.set()
    read_save(store, save, tensors, process_group=None, rank=0, world_size=1, timeout_s=60.0)
    assert bytes_of(tensors) == bytes_of({name: full(name, dtype, shape, 3) for name, dtype, shape in KINDS})
