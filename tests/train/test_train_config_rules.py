"""Which values of a configuration can work: each rule is told in a sentence that names the key."""

import pytest

from replica.config import Timeouts
from replica.errors import UserError
from train.config_reading import load_config
from train.config_rules import validate


def refusal(overrides: dict[str, str]) -> str:
    with pytest.raises(UserError) as caught:
        load_config(None, overrides)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("job.steps", "0"),
        ("job.seed", "-1"),
        ("job.seed", str(2**63)),
        ("job.name", ""),
        ("job.name", "a/b"),
        ("job.name", "a:b"),
        ("job.name", "x" * 65),
        ("job.micro_batches", "0"),
        ("data.sequence_length", "-5"),
        ("data.samples_per_micro_batch", "0"),
        ("model.layers", "0"),
        ("model.heads", "0"),
        ("model.heads", "3"),
        ("model.heads", "128"),
        ("model.kv_heads", "3"),
        ("model.vocab", "255"),
        ("model.dropout", "1"),
        ("model.dropout", "nan"),
        ("optimizer.lr", "inf"),
        ("optimizer.lr", "0"),
        ("optimizer.beta2", "1.0"),
        ("optimizer.min_lr_ratio", "1.1"),
        ("optimizer.weight_decay", "-0.1"),
        ("optimizer.warmup_steps", "-1"),
        ("run.device", "tpu"),
        ("run.digest_every", "-1"),
        ("run.threads_per_rank", "0"),
        ("run.max_nonfinite_steps", "0"),
        ("backstop.every_steps", "-1"),
        ("backstop.every_minutes", "-0.5"),
        ("backstop.every_minutes", "nan"),
        ("backstop.keep", "0"),
        ("backstop.timeout_s", "0"),
        ("backstop.grace_s", "-1"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(key: str, value: str) -> None:
    assert key in refusal({key: value})


def test_a_token_file_may_have_a_small_vocabulary() -> None:
    config = load_config(None, {"data.tokens": "uint16", "model.vocab": "100"})
    assert config.model.vocab == 100


def test_timeouts_form_a_chain() -> None:
    config = load_config(None, {"timeouts.transfer_s": "170.5"})
    assert config.timeouts == Timeouts(transfer_s=170.5)
    with pytest.raises(UserError, match=r"transfer_s = 600 and collective_s = 180 conflict"):
        load_config(None, {"timeouts.transfer_s": "600"})
    with pytest.raises(UserError, match="timeout vote_s is nan"):
        load_config(None, {"timeouts.vote_s": "nan"})


def test_saves_need_an_interval() -> None:
    url, never = {"backstop.url": "saves"}, {"backstop.every_steps": "0"}
    assert "both backstop.every_steps and backstop.every_minutes are 0: set one" in refusal({**url, **never})
    load_config(None, never)
    load_config(None, {**url, **never, "backstop.every_minutes": "0.5"})


def test_held_out_samples_must_be_shared_equally() -> None:
    config = load_config(None, {"eval.every": "10", "eval.samples": "9"})
    with pytest.raises(UserError, match=r"eval.samples = 9 .* a multiple of 2, such as 10"):
        validate(config, group_world_size=2)
    validate(load_config(None, {"eval.samples": "9"}), group_world_size=2)


def test_rounds_that_do_not_divide_are_refused_with_a_number_that_works() -> None:
    config = load_config(None, {"job.micro_batches": "12"})
    for ranks in (1, 2, 3, 4, 6, 12):
        validate(config, ranks)
    with pytest.raises(UserError, match=r"job\.micro_batches = 12 .* a multiple of 5, such as 15\."):
        validate(config, 5)
    with pytest.raises(UserError, match="at least 1 rank"):
        validate(config, 0)
