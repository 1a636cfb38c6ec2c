"""A save's name is a spelling that can be read back, and says which save is newer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.backstop.names import MAX_NUMBER, SaveName, trash_name

NUMBERS = st.integers(0, MAX_NUMBER)
NAMES = st.builds(
    SaveName, step=NUMBERS, quorum_id=NUMBERS, incarnation=st.text("0123456789abcdef", min_size=8, max_size=8)
)


@given(NAMES)
def test_a_name_can_be_read_back(name: SaveName) -> None:
    assert SaveName.parse(name.text) == name
    assert SaveName.parse_partial(name.partial) == name
    assert SaveName.parse(name.partial) is None
    assert SaveName.parse_partial(name.text) is None


@given(NAMES, NAMES)
def test_the_higher_quorum_is_newer_and_then_the_higher_step(one: SaveName, two: SaveName) -> None:
    newer = one.quorum_id > two.quorum_id or (one.quorum_id == two.quorum_id and one.step > two.step)
    assert (one.order > two.order) == newer


def test_the_spelling() -> None:
    name = SaveName(step=400, quorum_id=12, incarnation="00c0ffee")
    assert name.text == "step-000000000400-quorum-000000000012-00c0ffee"
    assert name.partial == ".partial-step-000000000400-quorum-000000000012-00c0ffee"
    assert trash_name(name.text) == ".trash-step-000000000400-quorum-000000000012-00c0ffee"
    assert trash_name(name.partial) == ".trash-partial-step-000000000400-quorum-000000000012-00c0ffee"


@given(st.one_of(st.text(), st.from_regex(r"step-\d{10,14}-quorum-\d{12}-[0-9a-fA-F]{8}\n?")))
def test_only_the_exact_spelling_is_a_name(text: str) -> None:
    found = SaveName.parse(text)
    assert found is None or found.text == text


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1},
        {"step": MAX_NUMBER + 1},
        {"quorum_id": -1},
        {"incarnation": "../../.."},
        {"incarnation": "ABCDEF00"},
    ],
)
def test_what_has_no_name_is_refused(wrong: dict[str, object]) -> None:
    fields = {"step": 1, "quorum_id": 1, "incarnation": "00000000", **wrong}
    with pytest.raises(ValueError, match="is not"):
        SaveName(**fields)  # type: ignore[arg-type]
