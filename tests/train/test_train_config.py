"""What can be set: defaults, the plain document, and the fingerprint of what decides the trajectory."""

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from replica.config import BackstopConfig, Mode
from train.config import JobConfig, as_document, fingerprint, known_keys
from train.config_reading import load_config


def test_exact_is_the_default_mode() -> None:
    assert load_config(None, {}).run.mode is Mode.EXACT
    assert load_config(None, {"run.mode": "fast"}).run.mode is Mode.FAST


def test_tokens_of_a_step() -> None:
    assert load_config(None, {}).tokens_per_step == 12 * 3 * 128


def test_without_a_url_there_is_no_backstop() -> None:
    assert JobConfig().backstop.settings is None
    config = load_config(None, {"backstop.url": "s3://saves/here", "backstop.keep": "5"})
    assert config.backstop.settings == BackstopConfig(url="s3://saves/here", every_steps=50, keep=5)


def test_the_whole_configuration_is_plain_json() -> None:
    document = as_document(load_config(None, {"run.mode": "fast"}))
    assert json.loads(json.dumps(document)) == document
    assert type(document["run"]["mode"]) is str
    keys = tuple(f"{section}.{key}" for section, content in document.items() for key in content)
    assert keys == known_keys()


# Fingerprint

NOT_TRAJECTORY = {
    *("job.name", "data.path", "run.digest_every", "run.device", "run.threads_per_rank"),
    *(key for key in known_keys() if key.startswith(("backstop.", "timeouts."))),
}


def changed(config: JobConfig, key: str) -> JobConfig:
    section, name = key.split(".")
    content: Any = getattr(config, section)
    old = getattr(content, name)
    if isinstance(old, StrEnum):
        new: Any = next(member for member in type(old) if member is not old)
    else:
        new = old + ("x" if isinstance(old, str) else 1)
    return dataclasses.replace(config, **{section: dataclasses.replace(content, **{name: new})})


@pytest.mark.parametrize("key", known_keys())
def test_the_fingerprint_changes_with_what_decides_the_trajectory(key: str) -> None:
    same = fingerprint(JobConfig(), "data") == fingerprint(changed(JobConfig(), key), "data")
    assert same == (key in NOT_TRAJECTORY)


def test_the_number_of_steps_counts_only_if_the_schedule_uses_it() -> None:
    constant = load_config(None, {"optimizer.schedule": "constant"})
    assert fingerprint(constant, "data") == fingerprint(changed(constant, "job.steps"), "data")


def test_the_fingerprint_is_of_words_that_name_what_differs() -> None:
    words, other = (
        set(fingerprint(config, "data").split())
        for config in (JobConfig(), changed(JobConfig(), "optimizer.lr"))
    )
    assert (words - other, other - words) == ({"optimizer.lr=0.003"}, {"optimizer.lr=1.003"})
    # A Lighthouse takes 1024 characters, the shapes of the model and the hash of the data among them.
    assert len(fingerprint(JobConfig(), "d" * 200)) < 900


def test_the_fingerprint_changes_with_the_data() -> None:
    assert fingerprint(JobConfig(), "data") != fingerprint(JobConfig(), "other data")


def test_the_fingerprint_does_not_depend_on_how_a_value_was_given(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[optimizer]\nclip_norm = 1\n")
    assert fingerprint(load_config(path, {}), "") == fingerprint(load_config(None, {}), "")
