"""Who has the state when a group has left: those that live, and those that left later."""

from itertools import permutations
from typing import Any

import pytest

from lighthouse.client import SlotState
from replica.remaining import Remaining, remaining


def row(group: int, state: SlotState, *, step: int = 7, gone_s: float | None = None) -> dict[str, Any]:
    return {"group": group, "state": state.value, "step": step, "gone_s": gone_s}


def after(*others: dict[str, Any], step: int = 7) -> Remaining:
    """As group 0 sees it, which left 2 s ago."""
    groups = [row(0, SlotState.LEFT, step=step, gone_s=2.0), *others]
    document = {"jobs": [{"job": "other", "groups": []}, {"job": "job", "groups": groups}]}
    return remaining(document, job="job", group=0, step=step)


LIVING = (SlotState.TRAINING, SlotState.ASKING, SlotState.JOINING)


@pytest.mark.parametrize("state", SlotState)
def test_only_the_living_go_on(state: SlotState) -> None:
    other = row(1, state, gone_s=None if state in LIVING else 5.0)
    assert after(other) is (Remaining.OTHERS if state in LIVING else Remaining.NOBODY)


@pytest.mark.parametrize(("step", "has_it"), [(0, False), (5, False), (6, True), (7, True), (9, True)])
def test_only_who_has_the_state_or_commits_it_next_counts(step: int, has_it: bool) -> None:
    assert after(row(1, SlotState.TRAINING, step=step)) is (Remaining.OTHERS if has_it else Remaining.NOBODY)


def test_a_joiner_never_has_the_state_of_the_first_step() -> None:
    assert after(row(1, SlotState.JOINING, step=0), step=1) is Remaining.NOBODY


def test_of_those_that_leave_together_exactly_one_is_the_last() -> None:
    for order in permutations(range(3)):
        groups = [row(each, SlotState.LEFT, gone_s=3.0 - order.index(each)) for each in range(3)]
        document = {"jobs": [{"job": "job", "groups": groups}]}
        seen = [remaining(document, job="job", group=each, step=7) for each in range(3)]
        assert [each for each in range(3) if seen[each] is Remaining.NOBODY] == [order[-1]]


def test_an_older_lighthouse_does_not_say_who_left_last() -> None:
    own, left, lives = row(0, SlotState.LEFT), row(1, SlotState.LEFT), row(2, SlotState.TRAINING)
    for each in (own, left, lives):
        del each["gone_s"]

    def seen(*groups: dict[str, Any]) -> Remaining:
        document = {"jobs": [{"job": "job", "groups": [own, *groups]}]}
        return remaining(document, job="job", group=0, step=7)

    assert seen(left) is Remaining.UNKNOWN
    assert seen(left, lives) is Remaining.OTHERS
    assert seen() is Remaining.NOBODY
    assert seen(row(1, SlotState.DEAD, gone_s=1.0)) is Remaining.NOBODY


def test_what_cannot_be_asked_is_not_known() -> None:
    assert remaining(None, job="job", group=0, step=7) is Remaining.UNKNOWN
    not_arrived = {"jobs": [{"job": "job", "groups": [row(0, SlotState.TRAINING)]}]}
    assert remaining(not_arrived, job="job", group=0, step=7) is Remaining.UNKNOWN
    not_known = {"jobs": [{"job": "job", "groups": [row(1, SlotState.LEFT, gone_s=9.0)]}]}
    assert remaining(not_known, job="job", group=0, step=7) is Remaining.UNKNOWN
