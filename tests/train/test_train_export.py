"""Exported models: the same logits in transformers, any size of file, and the save of another model."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from saving_rank import OTHER_WEIGHT, tiny

from replica.backstop import Save, Store, StoreError
from replica.errors import UserError
from train.export import Exported, export_save, llama_config
from train.model import build_model


def newest(saves: Path, job: str) -> tuple[Store, Save]:
    store = Store(str(saves), job)
    return store, next(each for each in store.listed() if isinstance(each, Save))


def export(saves: Path, job: str, out: Path, **how: int) -> Exported:
    return export_save(*newest(saves, job), out, **how)


def files(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
def test_transformers_finds_the_same_logits(
    made_saves: Path, tmp_path: Path, shard_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = export(made_saves, "tiny", tmp_path / "out", shard_bytes=shard_bytes)
    assert (len(done.files) > 4) == (shard_bytes < 10**6)
    assert done.config == tiny()
    from transformers import AutoModelForCausalLM

    theirs, told = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(told.values())
    ours = build_model(tiny().model, seed=12).eval()
    tokens = torch.randint(0, 256, (3, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = ours(tokens), theirs.eval()(tokens).logits
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert expected.std() > 0.01
        assert not torch.allclose(found, build_model(tiny().model, seed=8).eval()(tokens), atol=1e-3)
        # No byte of the text is taken for an end.
        assert theirs.generate(tokens[:1, :4], max_new_tokens=9, do_sample=False).shape == (1, 13)


def test_files_stay_below_the_size_that_is_asked_for(made_saves: Path, tmp_path: Path) -> None:
    whole = export(made_saves, "tiny", tmp_path / "whole")
    assert files(tmp_path / "whole") == ["config.json", "model.safetensors"] == list(whole.files)
    parts = export(made_saves, "tiny", tmp_path / "parts", shard_bytes=40_000)
    shards = [name for name in parts.files if name.endswith(".safetensors")]
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert all((tmp_path / "parts" / name).stat().st_size < 45_000 for name in shards)
    each = export(made_saves, "tiny", tmp_path / "each", shard_bytes=1)
    assert len(each.files) == each.tensors + 2
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == parts.bytes == whole.bytes
    together = load_file(tmp_path / "whole" / "model.safetensors")
    assert set(index["weight_map"]) == set(together)
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "parts" / file, "pt") as shard:
            assert torch.equal(shard.get_tensor(name), together[name])


def test_nothing_but_the_model_is_read(
    made_saves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("train.export")
    asked: list[set[str]] = []

    def spy(store: Store, save: Save, tensors: dict[str, torch.Tensor]) -> None:
        asked.append(set(tensors))

    monkeypatch.setattr(module, "read_part", spy)
    done = export(made_saves, "tiny", tmp_path / "out", shard_bytes=40_000)
    assert len(asked) > 2
    names = [name for part in asked for name in part]
    assert len(names) == len(set(names)) == done.tensors
    assert all(name.startswith("parameter.") for name in names)


def test_a_save_of_another_model_keeps_its_own_names(made_saves: Path, tmp_path: Path) -> None:
    done = export(made_saves, "other", tmp_path / "out")
    assert done.config is None
    assert files(tmp_path / "out") == ["model.safetensors"]
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == {"weight", "count"}
    assert torch.equal(found["weight"], OTHER_WEIGHT)
    assert found["count"].item() == 3


def test_the_shape_decides_what_is_the_reference_model(made_saves: Path) -> None:
    from train.export import reference_config

    store, save = newest(made_saves, "tiny")
    from replica.backstop.reading import contents_of

    saved = dict(contents_of(store, save))
    assert reference_config(save, saved) == tiny()
    assert reference_config(save, {**saved, "buffer.mean": torch.ones(3)}) is None
    del saved["parameter.output.weight"]
    assert reference_config(save, saved) is None


def test_both_spellings_of_the_rotary_base_are_written() -> None:
    written = llama_config(tiny(), torch.float32)
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 10000.0
    assert written["torch_dtype"] == "float32"
    assert written["bos_token_id"] is written["eos_token_id"] is written["pad_token_id"] is None


def test_a_folder_that_holds_something_is_left_alone(made_saves: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is there already and is not an empty folder"):
        export(made_saves, "tiny", tmp_path)
    with pytest.raises(UserError, match="is there already"):
        export(made_saves, "tiny", tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written"):
        export(made_saves, "tiny", tmp_path / "file" / "out")
    assert files(tmp_path) == ["file"]
    (tmp_path / "empty").mkdir()
    export(made_saves, "tiny", tmp_path / "empty")


def test_half_an_export_is_nowhere(made_saves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: Store, save: Save, tensors: object) -> None:
        raise StoreError("the place does not answer")

    monkeypatch.setattr("train.export.read_part", fail)
    with pytest.raises(StoreError, match="does not answer"):
        export(made_saves, "tiny", tmp_path / "out")
    assert files(tmp_path) == []


def test_without_safetensors_one_sentence_says_what_to_install(
    made_saves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UserError, match=r"run `pip install 'headway\[export\]'`"):
        export(made_saves, "tiny", tmp_path / "out")
    assert files(tmp_path) == []
