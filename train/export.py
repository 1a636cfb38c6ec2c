"""A save as a model for others: safetensors, and for the reference model the Hugging Face layout.

Reads only the model out of a save, one file of the result at a time, in one process.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from replica.backstop.reading import contents_of, read_part
from replica.backstop.store import Save, Store, StoreError
from replica.errors import UserError
from train.config import JobConfig
from train.config_reading import config_from_document
from train.model import NORM_EPS, Decoder

SHARD_BYTES = 5 * 10**9
_PARAMETER, _BUFFER = "parameter.", "buffer."
# Our names of modules, and those of transformers' Llama; blocks come before them.
_LLAMA = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.gate.weight": "mlp.gate_proj.weight",
    "feed_forward.up.weight": "mlp.up_proj.weight",
    "feed_forward.down.weight": "mlp.down_proj.weight",
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. config: of the reference model, None where the save is of another one."""

    files: tuple[str, ...]
    bytes: int
    tensors: int
    config: JobConfig | None


def export_save(store: Store, save: Save, out: Path, *, shard_bytes: int = SHARD_BYTES) -> Exported:
    """Write the model that a save holds into the new folder `out`, whole or not at all. Blocks.

    shard_bytes: how large a file may become, unless a single tensor is larger; that much memory is
    needed. Raises UserError for a folder that cannot be used or a missing package, StoreError where
    the save cannot be read. Does not check the save: `Store.verify` does that.
    """
    save_file = _safetensors()
    saved = contents_of(store, save)
    config = reference_config(save, saved)
    names = _llama_names(saved) if config is not None else _plain_names(saved)
    if not names:
        raise StoreError(f"save {save.name.text} holds no parameters: there is nothing to export")
    shards = _shards({new: saved[old] for new, old in names.items()}, shard_bytes)
    with _published(out) as folder:
        files = _file_names(len(shards))
        for file, shard in zip(files, shards, strict=True):
            tensors = {new: torch.empty_like(saved[names[new]], device="cpu") for new in shard}
            read_part(store, save, {names[new]: tensor for new, tensor in tensors.items()})
            try:
                save_file(tensors, folder / file, metadata={"format": "pt"})
            except Exception as error:  # its own kind, also for a full disk
                raise UserError(f"{out / file} cannot be written: {error}") from None
            (folder / file).chmod(0o644)  # safetensors lets nobody else read it
            del tensors
        total_bytes = sum(saved[old].nbytes for old in names.values())
        if len(files) > 1:
            weight_map = {new: file for file, shard in zip(files, shards, strict=True) for new in shard}
            index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
            _write_json(folder / "model.safetensors.index.json", index)
        if config is not None:
            _write_json(folder / "config.json", llama_config(config, saved["parameter.output.weight"].dtype))
        written = tuple(sorted(path.name for path in folder.iterdir()))
    return Exported(files=written, bytes=total_bytes, tensors=len(names), config=config)


def reference_config(save: Save, saved: Mapping[str, torch.Tensor]) -> JobConfig | None:
    """The configuration of the reference model, if that is what the save holds, else None."""
    document = save.manifest.facts.configuration
    try:
        config = config_from_document(document, where=f"save {save.name.text}")
    except UserError:
        return None
    with torch.device("meta"):
        parameters = dict(Decoder(config.model).named_parameters())
    wanted = {_PARAMETER + name: parameter.shape for name, parameter in parameters.items()}
    found = {name: tensor.shape for name, tensor in saved.items() if name.startswith((_PARAMETER, _BUFFER))}
    return config if document and wanted == found else None


def llama_config(config: JobConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of transformers' Llama with the shape of the reference model."""
    model = config.model
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.dim,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.dim // model.heads,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
        "max_position_embeddings": config.data.sequence_length,
        "rms_norm_eps": NORM_EPS,
        # Both spellings: releases of transformers before 5 know only the first.
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        # No token is set apart; the defaults would take two bytes of the text for marks.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _safetensors() -> Any:
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise UserError(
            "exporting needs the package safetensors: run `pip install 'headway[export]'`"
        ) from None
    return save_file


def _llama_names(saved: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The name in the save of each tensor of the result, by its new name.

    Rotary positions turn the pairs (i, i + head_dim / 2) here as there: no row changes its place.
    """
    return {_llama_name(old.removeprefix(_PARAMETER)): old for old in saved if old.startswith(_PARAMETER)}


def _llama_name(name: str) -> str:
    if not name.startswith("blocks."):
        return _LLAMA[name]
    _, number, inner = name.split(".", 2)
    return f"model.layers.{number}.{_LLAMA[inner]}"


def _plain_names(saved: Mapping[str, torch.Tensor]) -> dict[str, str]:
    kinds = (_PARAMETER, _BUFFER)
    return {old.partition(".")[2]: old for old in saved if old.startswith(kinds)}


def _shards(tensors: Mapping[str, torch.Tensor], shard_bytes: int) -> list[list[str]]:
    """The names, in order, in as many files as it takes to keep each below `shard_bytes`."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name in sorted(tensors):
        if shards[-1] and filled + tensors[name].nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += tensors[name].nbytes
    return shards


def _file_names(count: int) -> Sequence[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


@contextmanager
def _published(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place when all is written, and is gone if anything fails."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is there already and is not an empty folder: name a new one")
        folder = out.absolute().with_name(f".{out.name}.partial-{os.getpid()}")
        folder.mkdir(parents=True)
        try:
            yield folder
            folder.rename(out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from None


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
