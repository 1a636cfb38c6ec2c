"""Reads the metadata that torch.distributed.checkpoint pickles, without running anything that a pickle names.

Whatever the pickle names becomes an inert record of ours, made anew for each reading, and only for the
few names that a save needs; anything else is refused. From the records, once every value is
checked, the true objects are built.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from replica.backstop.store import StoreError

PROTOCOL = 4
_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    (_METADATA, "Metadata"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}
_DTYPES = {
    name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype) and "." not in name
}
_MAX_DIMENSIONS = 64
_MAX_LENGTH = 2**63 - 1


# All that pickle.dumps uses, with protocol 4, for the metadata of tensors.
_OPERATIONS = (
    *(
        pickle.PROTO,
        pickle.FRAME,
        pickle.STOP,
        pickle.MARK,
        pickle.MEMOIZE,
        pickle.BINGET,
        pickle.LONG_BINGET,
    ),
    *(pickle.STACK_GLOBAL, pickle.NEWOBJ, pickle.REDUCE, pickle.BUILD),
    *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(
        pickle.SHORT_BINUNICODE,
        pickle.BINUNICODE,
        pickle.BININT,
        pickle.BININT1,
        pickle.BININT2,
        pickle.LONG1,
    ),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
)


class _Refused(Exception):  # noqa: N818
    """Why a pickle is not read: one sentence without the place."""


class _Record:
    """What a pickle makes of a name: the values given to it, and nothing else."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle._Unpickler):
    """Knows the names and the operations that a save needs; each name is an inert class of its own.

    It is the one in Python, since the one in C cannot be limited in its operations: a few bytes make
    it ask for gigabytes.
    """

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        operation[0]: pickle._Unpickler.dispatch[operation[0]] for operation in _OPERATIONS
    }

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.classes: dict[tuple[str, str], type[_Record]] = {}

    def find_class(self, module_name: str, global_name: str) -> Any:
        """A throw-away class, or the spelling of a dtype. Raises _Refused for any other name."""
        if module_name == "torch" and global_name in _DTYPES:
            return global_name
        key = (module_name, global_name)
        if key not in _RECORDS:
            raise _Refused(f"it names {module_name[:100]}.{global_name[:100]}, which no save needs")
        return self.classes.setdefault(key, type(global_name, (_Record,), {}))


def read_metadata(data: bytes, *, place: str) -> Metadata:
    """The metadata of a save, from the bytes of its `.metadata`. Runs nothing that the bytes name.

    place: where they are from, for messages. Raises StoreError for anything that a save of ours
    does not hold.
    """
    try:
        return _metadata(_Unpickler(data).load())
    except _Refused as refusal:
        raise StoreError(f"{place} is refused: {refusal}") from None
    except Exception as error:
        raise StoreError(
            f"{place} is not the metadata of a save: {type(error).__name__} while it was read"
        ) from None


def _metadata(record: Any) -> Metadata:
    fields = _fields(record, "Metadata")
    tensors, places = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(tensors, dict) or not isinstance(places, dict):
        raise _Refused("it does not list tensors and where they lie")
    return Metadata(
        state_dict_metadata={_text(name): _tensor(entry) for name, entry in tensors.items()},
        storage_data={_index(key): _place(value) for key, value in places.items()},
        version=_text(fields.get("version")),
    )


def _tensor(record: Any) -> TensorStorageMetadata:
    fields = _fields(record, "TensorStorageMetadata")
    properties = _expect(fields.get("properties"), "TensorProperties").state
    chunks = fields.get("chunks")
    if not isinstance(properties, tuple) or not properties or not isinstance(chunks, list):
        raise _Refused("a tensor in it has no type or no chunks")
    if not isinstance(properties[0], str) or properties[0] not in _DTYPES:
        raise _Refused("a tensor in it has no known type of element")
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=_DTYPES[properties[0]]),
        size=_size(fields.get("size")),
        chunks=[_chunk(chunk) for chunk in chunks],
    )


def _chunk(record: Any) -> ChunkStorageMetadata:
    fields = _fields(record, "ChunkStorageMetadata")
    return ChunkStorageMetadata(offsets=_size(fields.get("offsets")), sizes=_size(fields.get("sizes")))


def _index(record: Any) -> MetadataIndex:
    fields = _fields(record, "MetadataIndex")
    return MetadataIndex(_text(fields.get("fqn")), _size(fields.get("offset")))


def _place(record: Any) -> _StorageInfo:
    fields = _fields(record, "_StorageInfo")
    if fields.get("transform_descriptors"):
        raise _Refused("its tensors are transformed, which no save of ours is")
    return _StorageInfo(
        relative_path=_text(fields.get("relative_path")),
        offset=_whole(fields.get("offset")),
        length=_whole(fields.get("length")),
    )


def _expect(record: Any, kind: str) -> _Record:
    if not isinstance(record, _Record) or type(record).__name__ != kind:
        raise _Refused(f"it holds a {type(record).__name__} where a {kind} belongs")
    return record


def _fields(record: Any, kind: str) -> Mapping[str, Any]:
    state = _expect(record, kind).state
    if not isinstance(state, dict):
        raise _Refused(f"a {kind} in it has no fields")
    return state


def _size(record: Any) -> torch.Size:
    values = _expect(record, "Size").values
    if len(values) != 1 or not isinstance(values[0], tuple) or len(values[0]) > _MAX_DIMENSIONS:
        raise _Refused("a shape in it is none")
    return torch.Size([_whole(length) for length in values[0]])


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_LENGTH:
        raise _Refused("a length in it is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Refused("a name in it is not a text")
    return value
