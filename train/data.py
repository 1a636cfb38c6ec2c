"""The data: text as byte tokens, or token files, cut into samples of equal length.

Sample k covers the tokens [k*T, k*T + T] of all files joined, T + 1 of them: T inputs, and as
targets the same shifted by one. Nothing is remembered between reads, and there are no worker
processes: samples are slices of memory.
"""

import os
import sysconfig
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import xxhash
from torch import Tensor

from replica.errors import UserError
from train.config import JobConfig, Tokens

TokenArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8 | np.uint16]]

# Left out of the standard library: what was installed into it, and what tests it.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_PROBES = 64
_PROBE_TOKENS = 2048


class Dataset:
    """Samples of ``sequence_length`` tokens over a row of token arrays. Safe to read from any thread."""

    def __init__(
        self, *, parts: Sequence[TokenArray], sequence_length: int, vocab: int, where: str, fingerprint: str
    ) -> None:
        """Cut ``parts``, taken as one row of tokens. ``where`` names them in errors.

        Raises UserError when they are too short for one sample.
        """
        self.sequence_length = sequence_length
        self.fingerprint = fingerprint
        self._parts = tuple(parts)
        self._ends = tuple(accumulate(len(part) for part in parts))
        self._vocab = vocab
        self._where = where
        tokens = self._ends[-1] if self._ends else 0
        self.size = max(0, tokens - 1) // sequence_length
        if self.size == 0:
            width = parts[0].itemsize if parts else 1
            raise UserError(
                f"{where} is too short for one sample: it holds {tokens * width} bytes and"
                f" {(sequence_length + 1) * width} are needed for data.sequence_length = {sequence_length}."
            )

    def read(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples, int64 of shape (B, T) each, contiguous.

        Raises IndexError for an index out of range(size), UserError for a token that the
        model's vocabulary does not have. Reads from disk only what is memory-mapped.
        """
        rows = np.stack([self._sample(index) for index in indices]).astype(np.int64)
        if rows.max() >= self._vocab:
            raise UserError(f"{self._where} has token {rows.max()}, and model.vocab is {self._vocab}.")
        tokens = torch.from_numpy(rows)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def _sample(self, index: int) -> TokenArray:
        if not 0 <= index < self.size:
            raise IndexError(f"sample {index} is not in range({self.size})")
        first = index * self.sequence_length
        last = first + self.sequence_length
        part = bisect_right(self._ends, first)
        pieces = []
        while first <= last:
            end = self._ends[part]
            start = end - len(self._parts[part])
            pieces.append(self._parts[part][first - start : last + 1 - start])
            first, part = end, part + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def open_dataset(config: JobConfig) -> Dataset:
    """Open the data that the configuration names.

    Text is read into memory here; token files are memory-mapped. Raises UserError when the path
    is missing, unreadable, empty, or too short for one sample.
    """
    data = config.data
    files = _library_files() if not data.path else _files(Path(data.path), data.tokens)
    where = data.path or f"Python's standard library in {sysconfig.get_path('stdlib')}"
    if not files:
        wanted = "*.bin" if data.tokens is Tokens.UINT16 else "visible"
        raise UserError(f"{where} holds no {wanted} files to read: set data.path to files of your own.")
    if data.tokens is Tokens.BYTES:
        parts: list[TokenArray] = [_read_text(files)]
        content = xxhash.xxh3_128_hexdigest(parts[0].data)
    else:
        parts = [part for file in files if len(part := _map_tokens(file)) > 0]
        content = _probe(parts)
    return Dataset(
        parts=parts,
        sequence_length=data.sequence_length,
        vocab=config.model.vocab,
        where=where,
        fingerprint=f"{data.tokens}-{sum(map(len, parts))}-{content}",
    )


def _library_files() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return _walk(root, lambda name: name not in _NOT_LIBRARY, lambda name: name.endswith(".py"))


def _files(path: Path, tokens: Tokens) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        if not path.exists():
            raise UserError(f"data.path {path} does not exist.")
    except OSError as error:
        raise UserError(f"data.path {path} cannot be read: {error.strerror}.") from None

    def visible(name: str) -> bool:
        return not name.startswith(".") and name != "__pycache__"

    ending = ".bin" if tokens is Tokens.UINT16 else ""
    return _walk(path, visible, lambda name: visible(name) and name.endswith(ending))


def _walk(root: Path, keep_folder: Callable[[str], bool], keep_file: Callable[[str], bool]) -> list[Path]:
    """List files below root in an order that every machine agrees on."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}.")

    found: list[Path] = []
    for folder, subfolders, names in os.walk(root, onerror=refuse):
        subfolders[:] = [name for name in subfolders if keep_folder(name)]
        files = (Path(folder, name) for name in names if keep_file(name))
        # Pipes are left out, since opening one may wait for ever; a broken link is kept, to be refused.
        found.extend(file for file in files if file.is_file() or not file.exists())
    return sorted(found, key=lambda file: file.relative_to(root).parts)


def _read_text(files: Iterable[Path]) -> TokenArray:
    text = bytearray()
    for file in files:
        try:
            text += file.read_bytes()
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    return np.frombuffer(text, dtype=np.uint8)


def _map_tokens(file: Path) -> TokenArray:
    """Memory-map little-endian 16-bit tokens."""
    try:
        size_bytes = file.stat().st_size
        if size_bytes % 2:
            raise UserError(f"{file} has an odd number of bytes, {size_bytes}: it holds no 16-bit tokens.")
        if size_bytes == 0:  # an empty file cannot be mapped
            return np.empty(0, dtype="<u2")
        return np.memmap(file, dtype="<u2", mode="r")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


def _probe(parts: Iterable[TokenArray]) -> str:
    """Hash lengths and evenly spaced stretches: to read terabytes for a fingerprint would not do."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        last = max(0, len(part) - _PROBE_TOKENS)
        for start in sorted({last * number // (_PROBES - 1) for number in range(_PROBES)}):
            state.update(part[start : start + _PROBE_TOKENS].tobytes())
    return state.hexdigest()
