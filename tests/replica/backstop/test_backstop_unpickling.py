"""Metadata from a store is read without running anything, whoever wrote it."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from replica.backstop.store import StoreError
from replica.backstop.unpickling import PROTOCOL, read_metadata


def metadata(**changes: Any) -> Metadata:
    """What DCP writes for two tensors."""
    found = Metadata(
        state_dict_metadata={
            "weight": TensorStorageMetadata(
                properties=TensorProperties(dtype=torch.bfloat16),
                size=torch.Size([3, 2]),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size([0, 0]), sizes=torch.Size([2, 2])),
                    ChunkStorageMetadata(offsets=torch.Size([2, 0]), sizes=torch.Size([1, 2])),
                ],
            ),
            "step": TensorStorageMetadata(
                properties=TensorProperties(dtype=torch.float8_e4m3fn),
                size=torch.Size([]),
                chunks=[ChunkStorageMetadata(offsets=torch.Size([]), sizes=torch.Size([]))],
            ),
        },
        storage_data={
            MetadataIndex("weight", [0, 0], 0): _StorageInfo("__0_0.distcp", 0, 10),
            MetadataIndex("weight", [2, 0], 1): _StorageInfo("__1_0.distcp", 0, 7),
            MetadataIndex("step", [], 0): _StorageInfo("__0_0.distcp", 10, 4),
        },
        version="1.0.0",
    )
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def refusal(data: bytes) -> str:
    with pytest.raises(StoreError) as caught:
        read_metadata(data, place="there/.metadata")
    assert str(caught.value).startswith("there/.metadata is ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_dcp_writes_comes_through() -> None:
    assert read_metadata(pickle.dumps(metadata(), PROTOCOL), place="there") == metadata()


def test_a_great_many_tensors_come_through() -> None:
    many = {f"weight.{number}": metadata().state_dict_metadata["weight"] for number in range(1000)}
    places = {
        MetadataIndex(name, [2 * row, 0]): _StorageInfo("__0_0.distcp", 2**40, 2**33)
        for name in many
        for row in (0, 1)
    }
    found = metadata(state_dict_metadata=many, storage_data=places)
    assert read_metadata(pickle.dumps(found, PROTOCOL), place="there") == found


class Planted:
    """Pickled, it is the call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def planted(call: Planted) -> list[bytes]:
    """A pickle that is the call, and pickles that hide it where values belong."""
    places = [
        metadata(version=call),
        metadata(storage_meta=call),
        metadata(planner_data={"a": call}),
        metadata(state_dict_metadata={"a": call}),
        metadata(storage_data={MetadataIndex("a"): _StorageInfo("a", 0, 1, [call])}),  # type: ignore[list-item]
    ]
    return [pickle.dumps(each, PROTOCOL) for each in (call, *places)]


def calls(marker: Path) -> list[Planted]:
    """Ways to leave a mark."""
    import operator
    import subprocess

    code = f"open({str(marker)!r}, 'w').close()"
    shell = f"touch {marker}"
    return [
        Planted(os.system, shell),
        Planted(eval, f"{code}"),
        Planted(exec, code),
        Planted(open, str(marker), "w"),
        Planted(getattr, "a", "upper"),
        Planted(subprocess.check_call, ["touch", str(marker)]),
        Planted(operator.methodcaller("touch"), marker),
        Planted(operator.attrgetter("touch"), marker),
        Planted(torch.load, str(marker)),
        Planted(torch.save, torch.zeros(1), str(marker)),
        Planted(pickle.loads, pickle.dumps(1)),
        Planted(torch.hub.load, "a", "b"),
        Planted(__import__, "os"),
    ]


def test_a_planted_call_is_refused_by_name_and_not_made(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for call in calls(marker):
        for data in planted(call):
            assert "which no save needs" in refusal(data)
    assert not marker.exists()


def test_the_calls_would_leave_a_mark(tmp_path: Path) -> None:
    for number in (0, 1, 2):
        pickle.loads(pickle.dumps(calls(tmp_path / str(number))[number]))
        assert (tmp_path / str(number)).exists()


@pytest.mark.parametrize(
    "name",
    [
        b"torch\nload",
        b"torch\nSize.__class__",
        b"torch.distributed.checkpoint.metadata\nos",
        b"torch.distributed.checkpoint.metadata\nMetadata.__init__.__globals__",
        b"torch.distributed.checkpoint.metadata\nos.system",
        b"torch.distributed.checkpoint.filesystem\nos",
        b"torch.serialization\nload",
        b"torch\nfloat32.__reduce__",
        b"builtins\ngetattr",
        b"copyreg\n_reconstructor",
    ],
)
def test_names_near_the_allowed_ones_are_refused(name: bytes) -> None:
    words = b"".join(b"\x8c" + bytes([len(word)]) + word for word in name.split(b"\n"))
    assert "which no save needs" in refusal(b"\x80\x04" + words + b"\x93.")
    for other_spelling in (b"c" + name + b"\n.", b"(i" + name + b"\n.", b"c" + name + b"\n(o."):
        refusal(other_spelling)


def test_a_class_cannot_be_changed_from_within() -> None:
    """A pickle may set attributes of what it names, so that must not be a class of anybody's."""
    named = b"\x80\x04\x8c\x27torch.distributed.checkpoint.metadata\x8c\x08Metadata\x93"
    state = b"N}\x8c\x07version\x8c\x07plantedss\x86b."
    refusal(named + state.replace(b"ss", b"s"))
    assert Metadata({}).version is None
    assert read_metadata(GOOD, place="there") == metadata()


def test_a_few_bytes_cannot_ask_for_gigabytes() -> None:
    for data in (b"\x80\x04Nr\xff\xff\xff\x7f.", b"\x80\x05\x96" + b"\xff\xff\xff\xff\x0f\0\0\0" + b"."):
        assert "KeyError" in refusal(data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state_dict_metadata": None}, "does not list"),
        ({"state_dict_metadata": {"a": 3}}, "where a TensorStorageMetadata belongs"),
        ({"state_dict_metadata": {3: metadata().state_dict_metadata["step"]}}, "a name in it"),
        ({"state_dict_metadata": {"a": BytesStorageMetadata()}}, "BytesStorageMetadata, which no save needs"),
        ({"storage_meta": StorageMeta()}, "StorageMeta, which no save needs"),
        ({"storage_data": {MetadataIndex("a", [0]): _StorageInfo("a", -1, 1)}}, "a length in it"),
        ({"storage_data": {MetadataIndex("a", [0]): _StorageInfo("a", 0, 1, ["zstd"])}}, "transformed"),
        ({"storage_data": {MetadataIndex("a"): _StorageInfo("a", 0, 1)}}, "where a Size belongs"),
        ({"storage_data": {"a": _StorageInfo("a", 0, 1)}}, "where a MetadataIndex belongs"),
        ({"version": None}, "a name in it"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(pickle.dumps(metadata(**changes), PROTOCOL))


GOOD = pickle.dumps(metadata(), PROTOCOL)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_metadata_or_a_sentence(position: int, value: int) -> None:
    data = GOOD[:position] + bytes([value]) + GOOD[position + 1 :]
    try:
        assert isinstance(read_metadata(data, place="there"), Metadata)
    except StoreError:
        return


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    refusal(data)


def test_a_truncated_one_is_refused() -> None:
    for length in range(0, len(GOOD), 7):
        refusal(GOOD[:length])


def test_one_that_refers_to_something_outside_is_refused() -> None:
    class Outside(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return "outside" if isinstance(obj, Metadata) else None

    written = io.BytesIO()
    Outside(written).dump(metadata())
    refusal(written.getvalue())
