"""A field of a JSON object is of the type that is asked for, or its name is told."""

from collections.abc import Callable
from typing import Any

import pytest

from replica.json_fields import integer, integers, number, optional_number, pairs, text


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (number, 3, 3.0),
        (number, 0.5, 0.5),
        (optional_number, None, None),
        (optional_number, 2, 2.0),
        (integer, 7, 7),
        (text, "", ""),
        (integers, [], ()),
        (integers, [2, 1], (2, 1)),
        (pairs, [[0, 1], [2, 3]], ((0, 1), (2, 3))),
    ],
)
def test_the_right_type_is_read(read: Callable[..., Any], value: Any, found: Any) -> None:
    assert read({"name": value}, "name") == found


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (number, True),
        (number, "1"),
        (number, None),
        (optional_number, "1"),
        (integer, False),
        (integer, 1.0),
        (text, 1),
        (integers, None),
        (integers, "12"),
        (integers, [1, True]),
        (pairs, [1, 2]),
        (pairs, [[1, 2, 3]]),
        (pairs, [[1, "2"]]),
    ],
)
def test_another_type_is_told_by_name(read: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ValueError, match="name is not a"):
        read({"name": value}, "name")


@pytest.mark.parametrize("read", [number, integer, text, integers, pairs])
def test_a_missing_field_is_one_of_another_type(read: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="name is not a"):
        read({}, "name")
