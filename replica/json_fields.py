"""Reads typed fields of a JSON object; a ValueError names the field that is of another type. Pure."""

from collections.abc import Mapping
from typing import Any


def number(raw: Mapping[str, Any], name: str) -> float:
    """A number, not a truth value."""
    value = raw.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number")
    return float(value)


def optional_number(raw: Mapping[str, Any], name: str) -> float | None:
    """A number, or None where it is null or missing."""
    return None if raw.get(name) is None else number(raw, name)


def integer(raw: Mapping[str, Any], name: str) -> int:
    """An integer, not a truth value."""
    value = raw.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is not an integer")
    return value


def text(raw: Mapping[str, Any], name: str) -> str:
    """A text."""
    value = raw.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def integers(raw: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The items of a list of integers."""
    return _integers(raw.get(name), name)


def pairs(raw: Mapping[str, Any], name: str) -> tuple[tuple[int, int], ...]:
    """The items of a list of pairs of integers."""
    value = raw.get(name)
    if not isinstance(value, list) or any(not isinstance(item, list) or len(item) != 2 for item in value):
        raise ValueError(f"{name} is not a list of pairs")
    items = (_integers(item, name) for item in value)
    return tuple((first, second) for first, second in items)


def _integers(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise ValueError(f"{name} is not a list of integers")
    return tuple(value)
