"""Reading a configuration: order of sources, types, refusals in one sentence, overrides."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import train.config
from replica.errors import UserError
from train.config import JobConfig, Schedule, Tokens, as_document, known_keys
from train.config_reading import config_from_document, load_config, parse_overrides, split_overrides
from train.config_rules import validate

CONFIGS = Path(train.config.__file__).parent / "configs"


def refusal(overrides: dict[str, str], path: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def toml_file(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


# Sources


def test_without_file_and_overrides_the_defaults_hold() -> None:
    assert load_config(None, {}) == JobConfig()


def test_the_default_file_tells_every_key_with_its_default() -> None:
    text = (CONFIGS / "default.toml").read_text()
    told = [f"{section}.{key}" for section, content in tomllib.loads(text).items() for key in content]
    assert tuple(told) == known_keys()
    assert load_config(CONFIGS / "default.toml", {}) == JobConfig()


def test_every_shipped_file_loads_and_suits_two_ranks() -> None:
    files = sorted(CONFIGS.glob("*.toml"))
    assert {"default.toml", "tiny.toml"} <= {file.name for file in files}
    for file in files:
        validate(load_config(file, {}), group_world_size=2)


def test_overrides_beat_the_file_and_the_file_beats_defaults(tmp_path: Path) -> None:
    path = toml_file(tmp_path, "[model]\ndim = 64\nlayers = 3\n")
    config = load_config(path, {"model.dim": "256"})
    assert (config.model.dim, config.model.layers, config.model.heads) == (256, 3, 4)


def test_values_have_the_types_of_their_keys(tmp_path: Path) -> None:
    path = toml_file(tmp_path, '[optimizer]\nlr = 1\nschedule = "constant"\n[data]\ntokens = "uint16"\n')
    config = load_config(path, {"optimizer.eps": "1e-7", "job.steps": "7", "data.path": "7"})
    assert type(config.optimizer.lr) is float
    assert config.optimizer.schedule is Schedule.CONSTANT
    assert config.data.tokens is Tokens.UINT16
    assert (config.optimizer.eps, config.job.steps, config.data.path) == (1e-7, 7, "7")


def test_a_document_reads_back_as_the_configuration_that_it_was_made_of() -> None:
    config = load_config(None, {"model.dim": "64", "run.mode": "fast", "backstop.url": "saves"})
    assert config_from_document(as_document(config), where="a save") == config
    with pytest.raises(UserError, match=r"^a save: unknown key model\.width"):
        config_from_document({"model": {"width": 3}}, where="a save")


# Refusals


@pytest.mark.parametrize(
    ("key", "guess"),
    [
        ("model.dmi", "model.dim"),
        ("optimiser.lr", "optimizer.lr"),
        ("steps", "job.steps"),
        ("model.seed", "job.seed"),
    ],
)
def test_an_unknown_key_gets_the_known_ones_and_a_guess(key: str, guess: str) -> None:
    sentence = refusal({key: "1"})
    assert f"unknown key {key} (did you mean {guess}?)" in sentence
    assert all(known in sentence for known in known_keys())


def test_an_unknown_key_of_a_file_is_refused_with_the_file_named(tmp_path: Path) -> None:
    path = toml_file(tmp_path, "[model]\nwidth = 3\n")
    assert refusal({}, path).startswith(f"{path}: unknown key model.width")


@pytest.mark.parametrize("text", ["[modle]\n", "steps = 3\n", "model = 3\n"])
def test_what_is_in_no_section_is_refused(tmp_path: Path, text: str) -> None:
    assert "the sections are job, data, model, optimizer, eval, run, backstop" in refusal(
        {}, toml_file(tmp_path, text)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[model]\ndim = 1.5\n", "model.dim must be a whole number, not 1.5"),
        ("[model]\ndim = true\n", "model.dim must be a whole number, not True"),
        ('[model]\ndim = "64"\n', "model.dim must be a whole number, not '64'"),
        ("[model.dim]\nx = 1\n", "model.dim must be a whole number"),
        ("[optimizer]\nlr = false\n", "optimizer.lr must be a number, not False"),
        ("[data]\npath = 3\n", "data.path must be a text, not 3"),
        ("[run]\nmode = 3\n", "run.mode must be a text, not 3"),
        ('[run]\nmode = "quick"\n', "run.mode is one of exact, fast, not 'quick'"),
    ],
)
def test_ill_typed_values_of_a_file_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal({}, toml_file(tmp_path, text))


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("model.dim", "wide", "--model.dim: model.dim must be a whole number, not 'wide'"),
        ("model.dim", "1.5", "model.dim must be a whole number"),
        ("optimizer.lr", "", "optimizer.lr must be a number"),
        ("optimizer.schedule", "linear", "optimizer.schedule is one of cosine, constant"),
    ],
)
def test_ill_typed_overrides_are_refused(key: str, text: str, expected: str) -> None:
    assert expected in refusal({key: text})


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal({}, tmp_path / "none.toml")
    assert "cannot be read" in refusal({}, tmp_path)
    assert "not valid TOML" in refusal({}, toml_file(tmp_path, "[model\n"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal({}, binary)


# Overrides on the command line


def test_overrides_are_read_in_both_spellings() -> None:
    words = ["--model.dim", "256", "--optimizer.lr=1e-3", "--data.path=a=b", "--model.dim", "128"]
    assert parse_overrides(words) == {"model.dim": "128", "optimizer.lr": "1e-3", "data.path": "a=b"}


def test_dashes_in_names_and_negative_values_are_understood() -> None:
    words = ["--optimizer.warmup-steps", "3", "--job.seed", "-1", "--data.path="]
    assert parse_overrides(words) == {"optimizer.warmup_steps": "3", "job.seed": "-1", "data.path": ""}


@pytest.mark.parametrize("words", [["--steps", "3"], ["model.dim", "3"], ["extra"], ["-m.x", "1"]])
def test_other_words_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match="unknown argument"):
        parse_overrides(words)


@pytest.mark.parametrize("words", [["--model.dim"], ["--model.dim", "--model.heads", "4"]])
def test_a_missing_value_is_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match=r"--model\.dim needs a value"):
        parse_overrides(words)


def test_overrides_are_taken_out_from_between_other_words() -> None:
    words = ["job.toml", "--model.dim", "256", "--steps", "3", "--out=a.b", "--job.seed=1", "--kill"]
    rest, overrides = split_overrides(words)
    assert rest == ["job.toml", "--steps", "3", "--out=a.b", "--kill"]
    assert overrides == {"model.dim": "256", "job.seed": "1"}


VALUES = st.text(st.characters(codec="ascii", exclude_categories=["C"])).filter(
    lambda value: not value.startswith("--")
)


@given(st.dictionaries(st.sampled_from(known_keys()), VALUES))
def test_overrides_come_back_as_they_were_written(overrides: dict[str, str]) -> None:
    apart = [word for key, value in overrides.items() for word in (f"--{key}", value)]
    joined = [f"--{key}={value}" for key, value in overrides.items()]
    assert parse_overrides(apart) == parse_overrides(joined) == overrides
