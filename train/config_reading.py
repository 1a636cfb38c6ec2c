"""Reads a configuration: defaults, then a TOML file, then overrides from the command line."""

import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from replica.config import Timeouts
from replica.errors import UserError
from train.config import (
    BackstopSection,
    DataSection,
    EvalSection,
    JobConfig,
    JobSection,
    ModelSection,
    OptimizerSection,
    RunSection,
    known_keys,
    known_types,
)
from train.config_rules import validate

_T = TypeVar("_T")


def load_config(path: Path | None, overrides: Mapping[str, str]) -> JobConfig:
    """Return the defaults, with the TOML file and then the overrides ("model.dim" -> "256") laid over them.

    Reads one file, if any. Raises UserError for an unreadable file, an unknown key, a value of
    the wrong type, or values that cannot work with any number of ranks.
    """
    values = {} if path is None else _values(_read_toml(path), where=str(path))
    for key, text in overrides.items():
        values[key] = _parsed(key, text, where=f"--{key}")
    config = _build(values)
    validate(config, group_world_size=1)
    return config


def config_from_document(document: Mapping[str, Any], where: str) -> JobConfig:
    """Read back what `train.config.as_document` made; `where` it comes from is for sentences.

    Raises UserError as `load_config` does.
    """
    config = _build(_values(document, where))
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


def _values(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {key: _typed(key, value, where) for key, value in _flatten(document, where)}


def _flatten(document: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    for section, content in document.items():
        sections = [known.name for known in dataclasses.fields(JobConfig)]
        if section not in sections or not isinstance(content, dict):
            raise UserError(f"{where}: {section} is no section; the sections are {', '.join(sections)}.")
        for name, value in content.items():
            yield f"{section}.{name}", value


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
        backstop=BackstopSection(**sections["backstop"]),
        timeouts=Timeouts(**sections["timeouts"]),
    )


def _typed(key: str, value: Any, where: str) -> Any:
    """Check a value that comes with a type. An integer will do where a float is wanted, no more."""
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
    known = known_types()
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
