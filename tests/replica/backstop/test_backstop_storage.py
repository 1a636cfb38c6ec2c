"""Tensors go to a file without copies, and the checksum is that of what the file holds."""

import io
from typing import IO, Any, cast

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from replica.backstop.storage import HashingStream, _with_storage_of_its_own


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_the_checksum_is_that_of_the_bytes(pieces: list[bytes]) -> None:
    raw = io.BytesIO()
    stream = HashingStream(raw)
    assert [stream.write(piece) for piece in pieces] == [len(piece) for piece in pieces]
    assert raw.getvalue() == b"".join(pieces)
    assert stream.tell() == len(raw.getvalue())
    entry = stream.entry("name")
    assert (entry.name, entry.bytes) == ("name", len(raw.getvalue()))
    assert entry.xxh3_128 == xxhash.xxh3_128_hexdigest(raw.getvalue())


def test_large_writes_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replica.backstop.storage._PIECE_BYTES", 10)
    sizes: list[int] = []

    class Raw:
        def write(self, data: Any) -> int:
            sizes.append(len(data))
            return len(data)

    stream = HashingStream(cast(IO[bytes], Raw()))
    stream.write(memoryview(torch.zeros(6, dtype=torch.int32).numpy()))
    assert sizes == [10, 10, 4]
    assert stream.entry("x").xxh3_128 == xxhash.xxh3_128_hexdigest(bytes(24))


def test_a_failure_of_the_file_is_kept() -> None:
    class Raw:
        def write(self, data: Any) -> int:
            raise ConnectionResetError("gone")

    stream = HashingStream(cast(IO[bytes], Raw()))
    with pytest.raises(ConnectionResetError):
        stream.write(b"abc")
    assert isinstance(stream.failure, ConnectionResetError)


def test_a_part_of_a_storage_is_saved_alone_and_not_copied() -> None:
    large = torch.arange(1000, dtype=torch.float32)
    alone = _with_storage_of_its_own(large[7:11].reshape(2, 2))
    assert alone.untyped_storage().nbytes() == alone.nbytes == 16
    assert alone.data_ptr() == large[7:].data_ptr()
    assert alone.tolist() == [[7, 8], [9, 10]]


def test_tensors_that_are_awkward_in_memory_keep_their_values() -> None:
    wide = torch.arange(12).reshape(3, 4).t()
    assert _with_storage_of_its_own(wide).equal(wide)
    turned = torch.tensor([1 + 2j]).conj()
    assert _with_storage_of_its_own(turned).equal(turned)
    assert _with_storage_of_its_own(torch.zeros(0, 3)).shape == (0, 3)
    assert _with_storage_of_its_own(torch.tensor(3)).item() == 3


def test_only_tensors_are_saved() -> None:
    with pytest.raises(TypeError, match="a BytesIO cannot be saved"):
        _with_storage_of_its_own(io.BytesIO())
