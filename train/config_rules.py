"""Which values of a configuration can work: every rule with the sentence that tells it is broken."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from replica.config import JOB_NAME
from replica.errors import UserError
from train.config import JobConfig, Tokens, known_keys

_DEVICE = re.compile(r"auto|cpu|cuda")
_SEED_LIMIT = 2**63

_POSITIVE = (
    *("job.steps", "job.micro_batches", "data.sequence_length", "data.samples_per_micro_batch"),
    *("model.dim", "model.layers", "model.heads", "model.kv_heads", "model.ffn", "model.vocab"),
    *("model.rope_theta", "optimizer.lr", "optimizer.eps", "optimizer.clip_norm"),
    *("eval.samples", "run.threads_per_rank", "run.max_nonfinite_steps"),
    *("backstop.keep", "backstop.timeout_s"),
)
_FROM_ZERO_BELOW: Mapping[str, float | None] = {
    "job.seed": _SEED_LIMIT,
    "model.dropout": 1,
    "optimizer.beta1": 1,
    "optimizer.beta2": 1,
    "optimizer.weight_decay": None,
    "optimizer.warmup_steps": None,
    "eval.every": None,
    "run.digest_every": None,
    "backstop.every_steps": None,
    "backstop.every_minutes": None,
    "backstop.grace_s": None,
}


def validate(config: JobConfig, group_world_size: int) -> None:
    """Raise UserError, in one sentence, at the first value that cannot work.

    ``group_world_size`` is the number of ranks in each replica group.
    """
    for ok, message in _rules(config, group_world_size):
        if not ok:
            raise UserError(message)


def _rules(config: JobConfig, ranks: int) -> Iterator[tuple[bool, str]]:
    """Yield (holds, sentence if not) in an order in which no rule divides by a bad value."""
    yield from _ranges(config)
    job, model, run = config.job, config.model, config.run
    yield (
        bool(JOB_NAME.fullmatch(job.name)),
        f"job.name is {job.name!r}: use 1 to 64 letters, digits, dots, dashes and underscores,"
        " a letter or digit first.",
    )
    yield bool(_DEVICE.fullmatch(run.device)), f"run.device is {run.device!r}: use auto, cpu or cuda."
    yield ranks >= 1, f"a replica group has at least 1 rank, not {ranks}."
    yield (
        job.micro_batches % ranks == 0,
        f"job.micro_batches = {job.micro_batches} cannot be dealt to groups of {ranks} ranks in whole"
        f" rounds: choose a multiple of {ranks}, such as {_next_multiple(job.micro_batches, ranks)}.",
    )
    yield (
        config.eval.held_out % ranks == 0,
        f"eval.samples = {config.eval.samples} cannot be shared equally by {ranks} ranks: choose a multiple"
        f" of {ranks}, such as {_next_multiple(config.eval.samples, ranks)}.",
    )
    yield (
        model.dim % model.heads == 0,
        f"model.heads = {model.heads} does not divide model.dim = {model.dim}.",
    )
    yield (
        (model.dim // model.heads) % 2 == 0,
        f"model.dim / model.heads = {model.dim // model.heads} must be even, for rotary positions.",
    )
    yield (
        model.heads % model.kv_heads == 0,
        f"model.kv_heads = {model.kv_heads} does not divide model.heads = {model.heads}.",
    )
    saves = config.backstop
    yield (
        not saves.url or bool(saves.every_steps or saves.every_minutes),
        "backstop.url is set, and both backstop.every_steps and backstop.every_minutes are 0: set one.",
    )
    vocab = {Tokens.BYTES: 256, Tokens.UINT16: 1}[config.data.tokens]
    yield (
        model.vocab >= vocab,
        f"model.vocab = {model.vocab} is too small: data.tokens = bytes needs 256.",
    )


def _ranges(config: JobConfig) -> Iterator[tuple[bool, str]]:
    known = {key: _value(config, key) for key in known_keys()}
    for key, value in known.items():
        if isinstance(value, float):
            yield math.isfinite(value), f"{key} must be a finite number, not {value}."
    for key in _POSITIVE:
        yield known[key] > 0, f"{key} must be greater than 0, not {known[key]}."
    for key, limit in _FROM_ZERO_BELOW.items():
        bound = "" if limit is None else f" and below {limit}"
        holds = known[key] >= 0 and (limit is None or known[key] < limit)
        yield holds, f"{key} must be at least 0{bound}, not {known[key]}."
    ratio = config.optimizer.min_lr_ratio
    yield 0 <= ratio <= 1, f"optimizer.min_lr_ratio must be from 0 to 1, not {ratio}."


def _value(config: JobConfig, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _next_multiple(number: int, of: int) -> int:
    return -(-number // of) * of
