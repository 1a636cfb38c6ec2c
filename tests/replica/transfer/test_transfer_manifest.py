"""Manifests: what is written is read back, chunks cover every byte once, and nothing bad is believed."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replica.transfer.manifest import (
    DTYPE_BYTES,
    MAX_DIMENSIONS,
    MIN_CHUNK_BYTES,
    BadManifest,
    Layout,
    Limits,
    Manifest,
    TensorSpec,
    decode,
    max_encoded_bytes,
    misfit,
)

NAMES = st.text(st.characters(categories=("L", "N"), include_characters="._ é漢"), min_size=1, max_size=20)
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
LIMITS = Limits(tensors=100, nbytes=1 << 30)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    names = draw(st.lists(NAMES, max_size=8, unique=True))
    dtypes = st.sampled_from(sorted(DTYPE_BYTES))
    tensors = tuple(TensorSpec(name=name, dtype=draw(dtypes), shape=draw(SHAPES)) for name in names)
    return Layout(tensors=tensors, chunk_bytes=draw(st.integers(MIN_CHUNK_BYTES, 3 * MIN_CHUNK_BYTES)))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    layout = draw(layouts())
    digests = draw(
        st.lists(st.binary(min_size=8, max_size=8), min_size=layout.chunks, max_size=layout.chunks)
    )
    return Manifest(step=draw(st.integers(0, 2**63 - 1)), layout=layout, digests=tuple(digests))


def spec(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def fields(**changes: Any) -> dict[str, Any]:
    """A good manifest of one tensor and one chunk as a dictionary, with changes."""
    good = {
        "step": 3,
        "chunk_bytes": MIN_CHUNK_BYTES,
        "tensors": [["weight", "float32", [2, 3]]],
        "digests": "00" * 8,
    }
    return good | changes


def reason(value: Any, limits: Limits = LIMITS) -> str:
    found = decode(json.dumps(value).encode(), limits)
    assert isinstance(found, BadManifest)
    return found.reason


@given(manifests())
def test_what_is_written_is_read_back(manifest: Manifest) -> None:
    body = manifest.encode()
    assert decode(body, LIMITS) == manifest
    assert len(body) <= max_encoded_bytes(manifest.layout)


@given(manifests(), st.data())
def test_the_state_id_tells_states_apart(manifest: Manifest, data: st.DataObject) -> None:
    other = data.draw(manifests())
    assert (manifest.state_id == other.state_id) == (manifest == other)
    later = Manifest(step=manifest.step ^ 1, layout=manifest.layout, digests=manifest.digests)
    assert later.state_id != manifest.state_id


@given(layouts())
def test_chunks_cover_every_byte_of_every_tensor_once(layout: Layout) -> None:
    covered = [bytearray(tensor.nbytes) for tensor in layout.tensors]
    for chunk in range(layout.chunks):
        start, stop = layout.bounds(chunk)
        parts = list(layout.segments(chunk))
        assert sum(part.stop - part.start for part in parts) == stop - start <= layout.chunk_bytes
        for part in parts:
            assert part.start < part.stop
            for at in range(part.start, part.stop):
                covered[part.tensor][at] += 1
    assert all(set(seen) <= {1} for seen in covered)


def test_there_is_no_chunk_beyond_the_last() -> None:
    layout = Layout(tensors=(spec("a", 1000),), chunk_bytes=MIN_CHUNK_BYTES)
    assert [layout.bounds(chunk) for chunk in range(layout.chunks)] == [
        (0, 1024),
        (1024, 2048),
        (2048, 3072),
        (3072, 4000),
    ]
    for chunk in (-1, 4):
        with pytest.raises(IndexError):
            layout.bounds(chunk)


def test_a_chunk_tells_its_tensors() -> None:
    layout = Layout(tensors=(spec("a", 300), spec("none", 0), spec("b", 10), spec("c", 1)), chunk_bytes=1024)
    assert layout.names_in(0) == "a"
    assert layout.names_in(1) == "a or one of the 2 after it"


def test_every_type_that_torch_can_send_is_known() -> None:
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    plain = {str(t).removeprefix("torch.") for t in every if "bits" not in str(t) and "quint" not in str(t)}
    plain = {name for name in plain if not name.startswith("qint")}
    assert plain == set(DTYPE_BYTES)
    assert all(getattr(torch, name).itemsize == size for name, size in DTYPE_BYTES.items())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_none(body: bytes) -> None:
    assert isinstance(decode(body, LIMITS), BadManifest)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(sorted(fields())), JSON)
def test_any_value_in_a_field_is_taken_or_refused_in_words(name: str, value: Any) -> None:
    found = decode(json.dumps(fields(**{name: value})).encode(), LIMITS)
    assert isinstance(found, Manifest) or found.reason


@given(st.integers(0, 2), JSON)
def test_any_value_in_a_tensor_is_taken_or_refused_in_words(place: int, value: Any) -> None:
    tensor: list[Any] = ["weight", "float32", [2, 3]]
    tensor[place] = value
    found = decode(json.dumps(fields(tensors=[tensor])).encode(), LIMITS)
    assert isinstance(found, Manifest) or found.reason


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "not an object"),
        (fields(more=1), "fields"),
        (fields(step=-1), "step"),
        (fields(step=True), "step"),
        (fields(step=2**63), "step"),
        (fields(step=1.0), "step"),
        (fields(chunk_bytes=0), "chunk_bytes"),
        (fields(chunk_bytes=1 << 40), "chunk_bytes"),
        (fields(tensors={}), "not a list"),
        (fields(tensors=[["a", "float32"]]), "name, type and shape"),
        (fields(tensors=[["a" * 5000, "float32", [6]]]), "short text"),
        (fields(tensors=[["a\x1b[2J", "float32", [6]]]), "printable"),
        (fields(tensors=[["\ud800", "float32", [6]]]), "printable"),
        (fields(tensors=[["a", "object", [6]]]), "type"),
        (fields(tensors=[["a", ["float32"], [6]]]), "type"),
        (fields(tensors=[["a", "float32", [1] * (MAX_DIMENSIONS + 1)]]), "shape"),
        (fields(tensors=[["a", "float32", [-6]]]), "length"),
        (fields(tensors=[["a", "float32", [2**40, 2**40]]]), "bytes, more than"),
        (fields(tensors=[["a", "float32", [3]], ["a", "float32", [3]]]), "one name"),
        (fields(tensors=[[f"t{i}", "int8", [0]] for i in range(101)]), "101 tensors, more than 100"),
        (fields(digests="00" * 7), "checksums"),
        (fields(digests="zz" * 8), "hexadecimal"),
        (fields(digests=" " * 14 + "00"), "hexadecimal"),
        (fields(digests=[0] * 16), "checksums"),
    ],
)
def test_what_is_wrong_is_told(value: Any, words: str) -> None:
    assert words in reason(value)


def test_deep_nesting_and_huge_numbers_are_no_manifest() -> None:
    for body in (b"[" * 200_000, b'{"step":' + b"9" * 10_000 + b"}", b"\xff\xfe", b""):
        assert decode(body, LIMITS) == BadManifest(reason="it is not JSON")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ((spec("a", 2), spec("b", 3)), None),
        ((spec("a", 2),), "b exists only here (1 such tensors)"),
        ((spec("a", 2), spec("b", 3), spec("c", 3)), "c exists only with the donor (1 such tensors)"),
        ((spec("a", 2), spec("b", 4)), "b is (4,) float32 with the donor, (3,) float32 here"),
        (
            (spec("a", 2, dtype="int8"), spec("b", 3)),
            "a is (2,) int8 with the donor, (2,) float32 here",
        ),
        ((spec("b", 3), spec("a", 2)), "a is at another place in the order of the tensors"),
    ],
)
def test_a_misfit_is_told_by_the_name_of_the_tensor(other: tuple[TensorSpec, ...], words: str | None) -> None:
    assert misfit((spec("a", 2), spec("b", 3)), other) == words
