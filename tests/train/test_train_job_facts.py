"""What is known of a job before it runs."""

from pathlib import Path

import pytest

from replica.errors import UserError
from train.cluster.job_facts import JobFacts, read_job


def read(**changes: object) -> JobFacts:
    values: dict[str, object] = {
        "script": None, "config": None, "ranks": 2, "steps": None, "seed": None, "job": None,
        "mode": None, "overrides": {},
    }  # fmt: skip
    given = {**values, **changes}
    return read_job(given.pop("script"), given.pop("config"), **given)  # type: ignore[arg-type]


def test_the_configuration_speaks_where_nothing_is_given(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[job]\nname = "night"\nsteps = 44\nseed = 9\nmicro_batches = 8\n')
    assert read(config=config, ranks=4) == JobFacts(job="night", steps=44, seed=9, mode="exact", rounds=2)


def test_where_saves_go_is_known_from_the_configuration(tmp_path: Path) -> None:
    assert read().backstop == ""
    assert read(overrides={"backstop.url": "s3://b/x"}).backstop == "s3://b/x"


def test_what_is_given_wins_over_overrides_and_these_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[job]\nsteps = 44\nseed = 9\n")
    found = read(config=config, steps=50, overrides={"job.steps": "60", "job.seed": "1"})
    assert (found.steps, found.seed) == (50, 1)


def test_of_a_script_only_what_is_given_is_known() -> None:
    facts = read(script=Path("/x/my model.py"))
    assert facts == JobFacts(job="my-model", steps=None, seed=0, mode="exact", rounds=None)


def test_ranks_that_do_not_divide_the_micro_batches_are_refused() -> None:
    with pytest.raises(UserError, match="whole rounds"):
        read(ranks=5)
