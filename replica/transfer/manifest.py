"""What a staged state looks like: tensors in one flat space of bytes, cut in chunks with a checksum. Pure.

The tensors lie one after the other, in order and without gaps; chunks cut that space into equal
parts, the last one shorter. On the wire a manifest is JSON, and nothing in it is believed before
`decode` has checked it.
"""

import bisect
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xxhash

# Bytes per element, under the names that torch gives to its types of element.
DTYPE_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys((f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    "complex128": 16,
}
MAX_STEP = 2**63 - 1
MAX_NAME_CHARS = 4096
MAX_DIMENSIONS = 64
MIN_CHUNK_BYTES = 1 << 10
MAX_CHUNK_BYTES = 1 << 28
MAX_CHUNKS = 1 << 24
STATE_ID_BYTES = 16
DIGEST_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One tensor of a state: its name, its type of element as torch calls it, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, row-major and without gaps."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A part of one tensor: the bytes `start` to `stop` of the tensor with this index."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The tensors of a state in order, and where the chunks of their bytes begin and end."""

    tensors: tuple[TensorSpec, ...]
    chunk_bytes: int

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Where each tensor ends in the flat space."""
        return tuple(itertools.accumulate(spec.nbytes for spec in self.tensors))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole state."""
        return self.ends[-1] if self.ends else 0

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.nbytes // self.chunk_bytes)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Where a chunk begins and ends in the flat space. Raises IndexError where there is none."""
        if not 0 <= chunk < self.chunks:
            raise IndexError(f"chunk {chunk} of {self.chunks}")
        start = chunk * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.nbytes)

    def segments(self, chunk: int) -> Iterator[Segment]:
        """The parts of tensors that make up a chunk, in order; none of them is empty."""
        start, stop = self.bounds(chunk)
        index = bisect.bisect_right(self.ends, start)
        while start < stop:
            end = self.ends[index]
            begin = end - self.tensors[index].nbytes
            if start < end:
                upto = min(end, stop)
                yield Segment(tensor=index, start=start - begin, stop=upto - begin)
                start = upto
            index += 1

    def names_in(self, chunk: int) -> str:
        """The tensors of a chunk in words, for people: the first, and how many more there are."""
        names = [self.tensors[segment.tensor].name for segment in self.segments(chunk)]
        return names[0] if len(names) == 1 else f"{names[0]} or one of the {len(names) - 1} after it"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A staged state: its step, its layout, and the xxh3_64 of each chunk (8 bytes, big-endian)."""

    step: int
    layout: Layout
    digests: tuple[bytes, ...]

    @cached_property
    def state_id(self) -> bytes:
        """16 bytes that are equal where step, layout and all checksums are."""
        return xxhash.xxh3_128_digest(self.encode())

    def encode(self) -> bytes:
        """The manifest as JSON in UTF-8."""
        tensors = [[spec.name, spec.dtype, list(spec.shape)] for spec in self.layout.tensors]
        fields = {
            "step": self.step,
            "chunk_bytes": self.layout.chunk_bytes,
            "tensors": tensors,
            "digests": b"".join(self.digests).hex(),
        }
        return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a reader takes at most: the number of tensors, and the bytes of the state."""

    tensors: int
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BadManifest:
    """Why some bytes are no manifest that can be used, in words."""

    reason: str


class _WrongError(Exception):
    """Carries a reason out of the nested checks of `decode`; never leaves this file."""


def decode(body: bytes, limits: Limits) -> Manifest | BadManifest:
    """Read a manifest that a peer sent. The caller has bounded the length of `body`."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return BadManifest(reason="it is not JSON")
    try:
        return _manifest(fields, limits)
    except _WrongError as wrong:
        return BadManifest(reason=str(wrong))


def max_encoded_bytes(layout: Layout) -> int:
    """A bound on the length of a manifest that could fit `layout`, with room for one that does not."""
    names = sum(len(spec.name) * 6 + 64 + 20 * len(spec.shape) for spec in layout.tensors)
    return 2 * names + 2 * DIGEST_BYTES * (-(-layout.nbytes // MIN_CHUNK_BYTES) + 1) + (1 << 16)


def misfit(own: Sequence[TensorSpec], other: Sequence[TensorSpec]) -> str | None:
    """Why `other` cannot be taken for `own`, by the name of the first tensor that differs, or None."""
    theirs = {spec.name: spec for spec in other}
    mine = {spec.name: spec for spec in own}
    one_sided = sorted(mine.keys() ^ theirs.keys())
    if one_sided:
        side = "here" if one_sided[0] in mine else "with the donor"
        return f"{one_sided[0]} exists only {side} ({len(one_sided)} such tensors)"
    for name, spec in mine.items():
        if spec != theirs[name]:
            return f"{name} is {theirs[name]} with the donor, {spec} here"
    if tuple(mine) != tuple(theirs):
        first = next(a for a, b in zip(mine, theirs, strict=True) if a != b)
        return f"{first} is at another place in the order of the tensors"
    return None


def _manifest(fields: Any, limits: Limits) -> Manifest:
    _check(isinstance(fields, dict), "it is not an object")
    names = ("step", "chunk_bytes", "tensors", "digests")
    _check(fields.keys() == set(names), f"its fields are not {', '.join(names)}")
    step = _whole_number(fields["step"], "step", 0, MAX_STEP)
    chunk_bytes = _whole_number(fields["chunk_bytes"], "chunk_bytes", MIN_CHUNK_BYTES, MAX_CHUNK_BYTES)
    tensors = fields["tensors"]
    _check(isinstance(tensors, list), "its tensors are not a list")
    _check(len(tensors) <= limits.tensors, f"it has {len(tensors)} tensors, more than {limits.tensors}")
    layout = Layout(tensors=tuple(_spec(item) for item in tensors), chunk_bytes=chunk_bytes)
    _check(len({spec.name for spec in layout.tensors}) == len(tensors), "two of its tensors have one name")
    _check(layout.nbytes <= limits.nbytes, f"it has {layout.nbytes} bytes, more than {limits.nbytes}")
    return Manifest(step=step, layout=layout, digests=_digests(fields["digests"], layout.chunks))


def _spec(item: Any) -> TensorSpec:
    _check(isinstance(item, list) and len(item) == 3, "a tensor is not name, type and shape")
    name, dtype, shape = item
    _check(isinstance(name, str) and len(name) <= MAX_NAME_CHARS, "the name of a tensor is no short text")
    _check(name.isprintable(), "the name of a tensor is not printable")
    _check(isinstance(dtype, str) and dtype in DTYPE_BYTES, f"{name} has a type that is not known here")
    _check(isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS, f"{name} has no usable shape")
    lengths = tuple(_whole_number(length, f"a length of {name}", 0, MAX_STEP) for length in shape)
    return TensorSpec(name=name, dtype=dtype, shape=lengths)


def _digests(text: Any, chunks: int) -> tuple[bytes, ...]:
    _check(isinstance(text, str) and chunks <= MAX_CHUNKS, "its checksums are not usable")
    _check(len(text) == 2 * DIGEST_BYTES * chunks, "its checksums do not match its size")
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        raise _WrongError("its checksums are not hexadecimal") from None
    _check(packed.hex() == text, "its checksums are not hexadecimal")
    return tuple(packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES))


def _whole_number(value: Any, what: str, low: int, high: int) -> int:
    _check(type(value) is int and low <= value <= high, f"{what} is not a number from {low} to {high}")
    return int(value)


def _check(holds: bool, reason: str) -> None:
    if not holds:
        raise _WrongError(reason)
