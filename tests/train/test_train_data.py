"""The data set: which tokens a sample has, where they come from, what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replica.errors import UserError
from train.config import JobConfig
from train.config_reading import load_config
from train.data import Dataset, open_dataset


def config_of(path: Path | str, *, length: int = 4, tokens: str = "bytes", vocab: int = 256) -> JobConfig:
    overrides = {
        "data.path": str(path),
        "data.sequence_length": str(length),
        "data.tokens": tokens,
        "model.vocab": str(vocab),
    }
    return load_config(None, overrides)


def dataset_of(parts: list[list[int]], *, length: int, vocab: int = 256) -> Dataset:
    arrays = [np.array(part, dtype=np.uint8) for part in parts]
    return Dataset(parts=arrays, sequence_length=length, vocab=vocab, where="parts", fingerprint="")


def refusal(config: JobConfig) -> str:
    with pytest.raises(UserError) as caught:
        open_dataset(config)
    return str(caught.value)


# Samples


def test_targets_are_inputs_shifted_by_one() -> None:
    dataset = dataset_of([list(range(10, 23))], length=4)
    assert dataset.size == 3
    inputs, targets = dataset.read([0, 2])
    assert inputs.tolist() == [[10, 11, 12, 13], [18, 19, 20, 21]]
    assert targets.tolist() == [[11, 12, 13, 14], [19, 20, 21, 22]]


def test_tensors_are_int64_and_contiguous() -> None:
    for tensor in dataset_of([list(range(13))], length=4).read([1]):
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()


@given(
    parts=st.lists(st.lists(st.integers(0, 255), max_size=9), min_size=1, max_size=8),
    length=st.integers(1, 6),
)
def test_parts_read_as_one_row(parts: list[list[int]], length: int) -> None:
    row = [token for part in parts for token in part]
    size = max(0, len(row) - 1) // length
    if size == 0:
        with pytest.raises(UserError, match="too short"):
            dataset_of(parts, length=length)
        return
    dataset = dataset_of(parts, length=length)
    inputs, targets = dataset.read(range(size))
    assert dataset.size == size
    assert inputs.flatten().tolist() == row[: size * length]
    assert targets.flatten().tolist() == row[1 : size * length + 1]


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(IndexError):
        dataset_of([list(range(13))], length=4).read([0, index])


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(UserError, match=r"parts has token 12, and model\.vocab is 12"):
        dataset_of([list(range(13))], length=4, vocab=12).read([2])


# Text


def test_a_file_is_read_as_bytes(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes("naïve".encode())
    inputs, _ = open_dataset(config_of(file, length=5)).read([0])
    assert bytes(inputs[0].tolist()) == "naïve".encode()[:5]


def test_a_folder_is_read_in_the_order_of_names_without_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden", ".git/x", "b/__pycache__/y", "b.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<{name}>")
    inputs, _ = open_dataset(config_of(tmp_path, length=30)).read([0])
    assert bytes(inputs[0].tolist()) == b"<a.txt><b/1.txt><b/2.txt><b.txt>"[:30]


def test_the_standard_library_is_there_without_its_tests(tmp_path: Path) -> None:
    dataset = open_dataset(config_of("", length=128))
    assert dataset.size > 20_000
    inputs, targets = dataset.read([0, dataset.size - 1])
    assert inputs.shape == targets.shape == (2, 128)
    assert bytes(inputs[0].tolist()).isascii()


def test_it_is_read_the_same_each_time() -> None:
    first, second = (open_dataset(config_of("")) for _ in range(2))
    assert (first.fingerprint, first.size) == (second.fingerprint, second.size)
    assert torch.equal(first.read([1234])[0], second.read([1234])[0])


def test_the_fingerprint_follows_the_content_not_the_place(tmp_path: Path) -> None:
    prints = []
    for name, text in (("one", b"abcdefgh"), ("two", b"abcdefgh"), ("three", b"abcdefgX")):
        (tmp_path / name).write_bytes(text)
        prints.append(open_dataset(config_of(tmp_path / name)).fingerprint)
    assert prints[0] == prints[1] != prints[2]


# Token files


def token_file(path: Path, tokens: list[int]) -> Path:
    path.write_bytes(np.array(tokens, dtype="<u2").tobytes())
    return path


def test_token_files_are_memory_mapped_and_joined(tmp_path: Path) -> None:
    token_file(tmp_path / "1.bin", [300, 301, 302])
    token_file(tmp_path / "0.bin", [1, 2])
    token_file(tmp_path / "empty.bin", [])
    (tmp_path / "notes.txt").write_text("not tokens")
    dataset = open_dataset(config_of(tmp_path, length=2, tokens="uint16", vocab=400))
    inputs, targets = dataset.read([0, 1])
    assert inputs.tolist() == [[1, 2], [300, 301]]
    assert targets.tolist() == [[2, 300], [301, 302]]


def test_the_fingerprint_of_token_files_follows_length_and_content(tmp_path: Path) -> None:
    def fingerprint(name: str, tokens: list[int]) -> str:
        file = token_file(tmp_path / name, tokens)
        return open_dataset(config_of(file, tokens="uint16", vocab=65536)).fingerprint

    row = list(range(60_000))
    first = fingerprint("a.bin", row)
    assert fingerprint("b.bin", row) == first
    assert fingerprint("c.bin", row[:-1]) != first
    assert fingerprint("d.bin", [*row[:-1], 7]) != first
    assert fingerprint("e.bin", [7, *row[1:]]) != first


def test_half_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(b"\0" * 25)
    assert "odd number of bytes, 25" in refusal(config_of(tmp_path / "odd.bin", tokens="uint16"))


# Refusals


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    assert refusal(config_of(tmp_path / "none")) == f"data.path {tmp_path / 'none'} does not exist."


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "no visible files" in refusal(config_of(tmp_path))
    assert "no *.bin files" in refusal(config_of(tmp_path, tokens="uint16"))


def test_too_short_is_refused_with_both_numbers(tmp_path: Path) -> None:
    file = tmp_path / "short"
    file.write_bytes(b"1234")
    assert "it holds 4 bytes and 5 are needed" in refusal(config_of(file))
    assert "it holds 4 bytes and 10 are needed" in refusal(config_of(file, tokens="uint16"))
    file.write_bytes(b"")
    assert "it holds 0 bytes and 5 are needed" in refusal(config_of(file))
    file.write_bytes(b"12345")
    assert open_dataset(config_of(file)).size == 1


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    os.symlink(tmp_path / "gone", tmp_path / "link")
    assert "cannot be read" in refusal(config_of(tmp_path))


def test_a_path_that_the_system_refuses_is_refused_in_a_sentence() -> None:
    assert "cannot be read: File name too long." in refusal(config_of("x" * 5000))


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("12345")
    assert open_dataset(config_of(tmp_path)).size == 1
