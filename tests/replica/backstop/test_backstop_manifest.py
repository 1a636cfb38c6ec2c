"""A manifest says the same when it is read back, and is believed in no single byte without a check."""

import json
from dataclasses import replace
from typing import Any

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from replica.backstop.manifest import Facts, FileEntry, Manifest
from replica.backstop.names import SaveName

FACTS = Facts(
    job="waves",
    group=2,
    incarnation="00c0ffee",
    group_world_size=4,
    mode="exact",
    layout=2**63 - 1,
    digest="0" * 32,
    fingerprint="f00",
    platform="torch 2.13, AVX2, 1 threads",
    configuration={"lr": 1e-3, "names": ["a", None, True], "é": {}},
    saved_at_s=1.8e9 + 0.1,
)
MANIFEST = Manifest(
    name=SaveName(step=400, quorum_id=12, incarnation="00c0ffee"),
    facts=FACTS,
    versions={"torch": "2.13"},
    files=(
        FileEntry(name=".metadata", bytes=5, xxh3_128="a" * 32),
        FileEntry(name="__0_0.distcp", bytes=0, xxh3_128="b" * 32),
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def altered(**changes: Any) -> bytes:
    """The manifest with other fields, and a checksum that fits."""
    fields = {**json.loads(MANIFEST.encode()), **changes}
    fields.pop("checksum")
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return json.dumps({**fields, "checksum": xxhash.xxh3_128_hexdigest(canonical.encode())}).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Manifest.decode(data)
    assert type(caught.value) is ValueError
    assert "\n" not in str(caught.value)
    assert 0 < len(str(caught.value)) < 500
    return str(caught.value)


def test_it_can_be_read_back() -> None:
    assert Manifest.decode(MANIFEST.encode()) == MANIFEST
    undigested = replace(MANIFEST, facts=replace(FACTS, digest=None))
    assert Manifest.decode(undigested.encode()) == undigested
    assert MANIFEST.bytes == 5


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_any_plain_configuration_comes_through(configuration: dict[str, Any]) -> None:
    manifest = replace(MANIFEST, facts=replace(FACTS, configuration=configuration))
    assert Manifest.decode(manifest.encode()) == manifest


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"bytes"])
def test_another_configuration_is_refused_in_writing(value: object) -> None:
    manifest = replace(MANIFEST, facts=replace(FACTS, configuration={"a": value}))
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        manifest.encode()


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert Manifest.decode(altered(weather="fine")) == MANIFEST


@given(st.integers(0, len(MANIFEST.encode()) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_noticed(position: int, flip: int) -> None:
    data = bytearray(MANIFEST.encode())
    data[position] ^= flip
    try:
        found = Manifest.decode(bytes(data))
    except ValueError:
        return
    assert found == MANIFEST  # white space took the place of other white space


@given(st.integers(0, len(MANIFEST.encode()) - 2))
def test_a_truncated_one_is_refused(length: int) -> None:
    refusal(MANIFEST.encode()[:length])


@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"\xff\xfe")
@example(b'{"format": NaN}')
@example(b'{"format": 1, "checksum": ' + b"1" * 5000 + b"}")
def test_garbage_is_refused_with_a_sentence(data: bytes) -> None:
    refusal(data)


@given(st.sampled_from(sorted(json.loads(MANIFEST.encode()))), JSON)
def test_a_field_of_another_kind_is_refused_or_right(field: str, value: Any) -> None:
    if field == "checksum":
        return
    try:
        found = Manifest.decode(altered(**{field: value}))
    except ValueError:
        return
    assert isinstance(found.facts.layout, int)
    assert isinstance(found.facts.job, str)
    assert isinstance(found.facts.configuration, dict)
    assert found.facts.digest is None or isinstance(found.facts.digest, str)


FILE = {"name": "a", "bytes": 1, "xxh3_128": "a" * 32}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "format 2"),
        ({"name": "step-1"}, "name"),
        ({"group_world_size": 0}, "group_world_size"),
        ({"layout": 2**63}, "layout"),
        ({"layout": True}, "layout"),
        ({"saved_at_s": 3}, "saved_at_s"),
        ({"versions": {"torch": 2}}, "torch"),
        ({"files": []}, "files"),
        ({"files": [FILE, FILE]}, "twice"),
        ({"files": [{**FILE, "name": "../../etc/passwd"}]}, "plain name"),
        ({"files": [{**FILE, "name": ".."}]}, "plain name"),
        ({"files": [{**FILE, "name": "headway.json"}]}, "plain name"),
        ({"files": [{**FILE, "name": "a\n"}]}, "plain name"),
        ({"files": [{**FILE, "bytes": -1}]}, "bytes"),
        ({"files": [{**FILE, "bytes": 1.5}]}, "bytes"),
        ({"files": [{**FILE, "xxh3_128": "A" * 32}]}, "hexadecimal"),
        ({"files": [[]]}, "file in the manifest"),
        ({"job": "x" * 5000}, "job"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(altered(**changes))
