"""What is known of a job before it runs: as told, and as its configuration says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from train.config_reading import load_config
from train.config_rules import validate


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What is known of the job before it runs. steps and rounds None: only the user's script knows.

    rounds: rounds in each step. mode: exact or fast. backstop: where the configuration has saves go,
    empty for nowhere.
    """

    job: str
    steps: int | None = None
    seed: int = 0
    mode: str = "exact"
    rounds: int | None = None
    backstop: str = ""


def read_job(
    script: Path | None,
    config: Path | None,
    *,
    ranks: int,
    steps: int | None,
    seed: int | None,
    job: str | None,
    mode: str | None,
    overrides: Mapping[str, str],
) -> JobFacts:
    """What the job is: as given, else as the configuration says.

    Of a script only what is given is known. Raises UserError for a configuration that cannot work.
    """
    if script is not None:
        name = job or re.sub(r"[^A-Za-z0-9._-]", "-", script.stem)
        return JobFacts(job=name, steps=steps, seed=seed or 0, mode=mode or "exact")
    given = {"job.steps": steps, "job.seed": seed, "job.name": job, "run.mode": mode}
    words = {key: str(value) for key, value in given.items() if value is not None}
    found = load_config(config, {**overrides, **words})
    validate(found, group_world_size=ranks)
    return JobFacts(
        job=found.job.name,
        steps=found.job.steps,
        seed=found.job.seed,
        mode=found.run.mode,
        rounds=found.job.micro_batches // ranks,
        backstop=found.backstop.url,
    )
