"""A job's configuration: what can be set, which values are allowed, where they are read from.

Defaults < TOML file < overrides from the command line. Each key is told in configs/default.toml.
"""

import dataclasses
import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from replica.config import JOB_NAME, Mode
from replica.errors import UserError

_DEVICE = re.compile(r"auto|cpu|cuda")
_SEED_LIMIT = 2**63
_T = TypeVar("_T")

_POSITIVE = (
    *("job.steps", "job.micro_batches", "data.sequence_length", "data.samples_per_micro_batch"),
    *("model.dim", "model.layers", "model.heads", "model.kv_heads", "model.ffn", "model.vocab"),
    *("model.rope_theta", "optimizer.lr", "optimizer.eps", "optimizer.clip_norm"),
    *("eval.samples", "run.threads_per_rank", "run.max_nonfinite_steps"),
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
}


class Tokens(StrEnum):
    """How the bytes of the data are read as tokens."""

    BYTES = "bytes"
    UINT16 = "uint16"


class Schedule(StrEnum):
    """What the learning rate does after the warm-up."""

    COSINE = "cosine"
    CONSTANT = "constant"


@dataclass(frozen=True, kw_only=True)
class JobSection:
    """The run as a whole. A step is always micro_batches micro-batches, however many ranks live."""

    name: str = "stdlib"
    seed: int = 0
    steps: int = 200
    micro_batches: int = 12


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """What is read. An empty path stands for the source text of Python's own standard library."""

    path: str = ""
    tokens: Tokens = Tokens.BYTES
    sequence_length: int = 128
    samples_per_micro_batch: int = 3


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """Shape of the decoder, in numbers of features, blocks, heads and tokens."""

    dim: int = 128
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 352
    vocab: int = 256
    dropout: float = 0.1
    rope_theta: float = 10000.0


@dataclass(frozen=True, kw_only=True)
class OptimizerSection:
    """AdamW and the course of its learning rate; lr is the peak."""

    lr: float = 3e-3
    min_lr_ratio: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    warmup_steps: int = 20
    clip_norm: float = 1.0
    schedule: Schedule = Schedule.COSINE


@dataclass(frozen=True, kw_only=True)
class EvalSection:
    """Looking at held-out data. every is in steps; 0 means never, and nothing is held out."""

    every: int = 0
    samples: int = 96

    @property
    def held_out(self) -> int:
        """Number of samples that are never trained on."""
        return self.samples if self.every else 0


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """How this machine runs the job. digest_every is in steps; 0 means never."""

    mode: Mode = Mode.EXACT
    digest_every: int = 1
    device: str = "auto"
    threads_per_rank: int = 1
    max_nonfinite_steps: int = 5


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """The whole configuration of a job."""

    job: JobSection = field(default_factory=JobSection)
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    eval: EvalSection = field(default_factory=EvalSection)
    run: RunSection = field(default_factory=RunSection)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one committed step is made of."""
        return self.job.micro_batches * self.data.samples_per_micro_batch * self.data.sequence_length


def load_config(path: Path | None, overrides: Mapping[str, str]) -> JobConfig:
    """Read a configuration: defaults, then the TOML file, then overrides ("model.dim" -> "256").

    Reads one file, if any. Raises UserError for an unreadable file, an unknown key, a value of
    the wrong type, or values that cannot work with any number of ranks.
    """
    values: dict[str, Any] = {}
    if path is not None:
        for key, value in _flatten(_read_toml(path), where=str(path)):
            values[key] = _typed(key, value, where=str(path))
    for key, text in overrides.items():
        values[key] = _parsed(key, text, where=f"--{key}")
    config = _build(values)
    validate(config, group_world_size=1)
    return config


def parse_overrides(argv: Sequence[str]) -> dict[str, str]:
    """Turn `--section.key value` and `--section.key=value` into overrides; the last one wins.

    Raises UserError for anything else. Whether the keys exist is for load_config to say.
    """
    rest, overrides = split_overrides(argv)
    if rest:
        raise UserError(
            f"unknown argument {rest[0]!r}: options of the configuration are written --section.key VALUE."
        )
    return overrides


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Take the overrides out of a command line; return its other words, in order, and the overrides.

    To be called before a parser of flags, which would take `256` in `--model.dim 256` for a
    positional argument. Raises UserError for an override without a value.
    """
    rest: list[str] = []
    overrides: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in name:
            rest.append(word)
            continue
        if not equals:
            found = next(words, None)
            if found is None or found.startswith("--"):
                raise UserError(f"--{name} needs a value: write --{name} VALUE.")
            value = found
        overrides[name.replace("-", "_")] = value
    return rest, overrides


def known_keys() -> tuple[str, ...]:
    """Return all keys of the configuration, as "section.key", in the order of the file."""
    return tuple(_known())


def validate(config: JobConfig, group_world_size: int) -> None:
    """Raise UserError, in one sentence, at the first value that cannot work.

    ``group_world_size`` is the number of ranks in each replica group.
    """
    for ok, message in _rules(config, group_world_size):
        if not ok:
            raise UserError(message)


def fingerprint(config: JobConfig, data_fingerprint: str) -> str:
    """Return 32 hex digits over all that decides the trajectory, for groups to compare.

    ``data_fingerprint`` is that of the opened data set. The job's name, paths, the device and
    threads are no part of it; the number of steps is one only if the schedule uses it.
    """
    document = dataclasses.asdict(config)
    document["data"]["content"] = data_fingerprint
    left_out = ["job.name", "data.path", "run.digest_every", "run.device", "run.threads_per_rank"]
    if config.optimizer.schedule is not Schedule.COSINE:
        left_out.append("job.steps")
    for key in left_out:
        section, name = key.split(".")
        del document[section][name]
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return xxhash.xxh3_128_hexdigest(canonical.encode())


# Reading


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"the configuration file {path} does not exist.") from None
    except OSError as error:
        raise UserError(f"the configuration file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"the configuration file {path} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the configuration file {path} is not valid TOML: {error}.") from None


def _flatten(document: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    for section, content in document.items():
        sections = [known.name for known in dataclasses.fields(JobConfig)]
        if section not in sections or not isinstance(content, dict):
            raise UserError(f"{where}: {section} is no section; the sections are {', '.join(sections)}.")
        for name, value in content.items():
            yield f"{section}.{name}", value


def _known() -> dict[str, type]:
    """Map each "section.key" to the type of its value."""
    return {
        f"{section.name}.{key.name}": key.type
        for section in dataclasses.fields(JobConfig)
        for key in dataclasses.fields(section.type)  # type: ignore[arg-type]
        if isinstance(key.type, type)
    }


def _build(values: Mapping[str, Any]) -> JobConfig:
    sections: dict[str, dict[str, Any]] = {section.name: {} for section in dataclasses.fields(JobConfig)}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections[section][name] = value
    return JobConfig(
        job=JobSection(**sections["job"]),
        data=DataSection(**sections["data"]),
        model=ModelSection(**sections["model"]),
        optimizer=OptimizerSection(**sections["optimizer"]),
        eval=EvalSection(**sections["eval"]),
        run=RunSection(**sections["run"]),
    )


# Types


def _typed(key: str, value: Any, where: str) -> Any:
    """Check a value that TOML has typed. An integer will do where a float is wanted, no more."""
    wanted = _wanted(key, where)
    if wanted is float and type(value) is int:
        return float(value)
    if issubclass(wanted, StrEnum) and type(value) is str:
        return _member(wanted, key, value, where)
    if type(value) is not wanted:
        raise UserError(_ill_typed(key, value, wanted, where))
    return value


def _parsed(key: str, text: str, where: str) -> Any:
    """Read a value from a word of the command line."""
    wanted = _wanted(key, where)
    if issubclass(wanted, StrEnum):
        return _member(wanted, key, text, where)
    readers: dict[type, Callable[[str], Any]] = {int: int, float: float, str: str}
    try:
        return readers[wanted](text)
    except ValueError:
        raise UserError(_ill_typed(key, text, wanted, where)) from None


def _member(wanted: type[_T], key: str, value: str, where: str) -> _T:
    try:
        return wanted(value)  # type: ignore[call-arg]
    except ValueError:
        allowed = ", ".join(str(member) for member in wanted)  # type: ignore[attr-defined]
        raise UserError(f"{where}: {key} is one of {allowed}, not {value!r}.") from None


def _wanted(key: str, where: str) -> type:
    known = _known()
    if key not in known:
        raise UserError(_unknown_key(key, where))
    return known[key]


def _unknown_key(key: str, where: str) -> str:
    known = known_keys()
    same_name = [name for name in known if name.partition(".")[2] == key.rpartition(".")[2]]
    close = same_name or difflib.get_close_matches(key, known, n=1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return f"{where}: unknown key {key}{guess}; the known keys are {', '.join(known)}."


def _ill_typed(key: str, value: Any, wanted: type, where: str) -> str:
    names = {int: "a whole number", float: "a number", str: "a text"}
    expected = names.get(wanted, "a text")
    return f"{where}: {key} must be {expected}, not {value!r}."


# Values


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
