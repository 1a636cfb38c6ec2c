"""A job's configuration: what can be set, with its defaults, and what of it decides the trajectory.

Each key is told in configs/default.toml.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from replica.config import DEFAULT_SAVE_EVERY_STEPS, BackstopConfig, Mode, Timeouts


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
class BackstopSection:
    """Saves for the day when every group dies. An empty url stands for none; every_steps is in steps."""

    url: str = ""
    every_steps: int = DEFAULT_SAVE_EVERY_STEPS
    every_minutes: float = 0.0
    keep: int = 3
    timeout_s: float = 600.0
    grace_s: float = 20.0

    @property
    def settings(self) -> BackstopConfig | None:
        """What a replica group is told of it, None where nothing is saved."""
        return BackstopConfig(**dataclasses.asdict(self)) if self.url else None


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """The whole configuration of a job."""

    job: JobSection = field(default_factory=JobSection)
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    eval: EvalSection = field(default_factory=EvalSection)
    run: RunSection = field(default_factory=RunSection)
    backstop: BackstopSection = field(default_factory=BackstopSection)
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one committed step is made of."""
        return self.job.micro_batches * self.data.samples_per_micro_batch * self.data.sequence_length


def known_keys() -> tuple[str, ...]:
    """Return all keys of the configuration, as "section.key", in the order of the file."""
    return tuple(known_types())


def known_types() -> dict[str, type]:
    """Map each "section.key" to the type of its value."""
    return {
        f"{section.name}.{key.name}": key.type
        for section in dataclasses.fields(JobConfig)
        for key in dataclasses.fields(section.type)  # type: ignore[arg-type]
        if isinstance(key.type, type)
    }


def as_document(config: JobConfig) -> dict[str, Any]:
    """Return the whole configuration as plain JSON values, a mapping for each section."""
    document: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), allow_nan=False))
    return document


def fingerprint(config: JobConfig, data_fingerprint: str) -> str:
    """Return all that decides the trajectory, for groups to compare: words like `model.dim=128`.

    ``data_fingerprint`` is that of the opened data set. The job's name, paths, the device,
    threads, saves and timeouts are no part of it; the number of steps is one only if the schedule uses it.
    """
    document = as_document(config)
    del document["backstop"], document["timeouts"]
    document["data"]["content"] = data_fingerprint
    left_out = ["job.name", "data.path", "run.digest_every", "run.device", "run.threads_per_rank"]
    if config.optimizer.schedule is not Schedule.COSINE:
        left_out.append("job.steps")
    for key in left_out:
        section, name = key.split(".")
        del document[section][name]
    return " ".join(
        f"{section}.{name}={value}"
        for section, content in document.items()
        for name, value in content.items()
    )
