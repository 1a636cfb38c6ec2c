"""How a group leaves: what it saves, in which order, what it says, and when the user is told of a failure."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from replica.errors import UserError
from replica.leaving import leave
from replica.saves import LastSave


class Group:
    """Group 2, with or without saves; `said` is the order of what it does."""

    def __init__(
        self,
        *,
        step: int,
        saves: bool = True,
        alone: bool = False,
        last: LastSave | None = None,
        failure: str | None = None,
    ) -> None:
        self.said: list[object] = []
        self.step = step
        self.config = SimpleNamespace(group=2, steps=9)
        self.notices = SimpleNamespace(draining=True)
        self.saves = None
        if saves:
            self.saves = SimpleNamespace(
                is_alone=alone, last=last, failure=failure, before_leaving=lambda: self.said.append("save")
            )
        self.stopwatch = SimpleNamespace(
            time=lambda doing: nullcontext(), seconds=lambda: SimpleNamespace(save=0.0)
        )
        self.ranks = SimpleNamespace(first_then_all=lambda action, timeout_s: action())
        self.stream = SimpleNamespace(goodbye=lambda *, finished, step: self.said.append((finished, step)))
        self.record = SimpleNamespace(group_event=lambda kind, **values: None)

    def leave(self) -> list[object]:
        leave(cast(Any, self))
        return self.said


def test_a_group_that_is_drained_says_goodbye_and_then_saves_if_that_falls_to_it() -> None:
    assert Group(step=5).leave() == [(False, 5), "save"]


def test_the_last_one_saves_before_it_goes() -> None:
    assert Group(step=5, alone=True).leave() == ["save", (False, 5)]


def test_without_saves_there_is_only_a_goodbye() -> None:
    assert Group(step=5, saves=False).leave() == [(False, 5)]
    assert Group(step=9, saves=False).leave() == [(True, 9)]


def test_the_job_is_finished_only_with_its_last_save() -> None:
    assert Group(step=9, last=LastSave.DURABLE).leave() == [(True, 9)]
    assert Group(step=9, last=LastSave.ATTEMPT_OVER).leave() == [(False, 9)]
    failed = Group(step=9, last=LastSave.IN_VAIN, failure="the disk is full")
    with pytest.raises(UserError, match="the disk is full"):
        failed.leave()
    assert failed.said == [(False, 9)]


def test_a_drain_whose_state_others_have_is_no_failure() -> None:
    Group(step=5, failure="too slow").leave()
    with pytest.raises(UserError, match="too slow"):
        Group(step=5, alone=True, failure="too slow").leave()
