"""How a group leaves: what it saves, in which order, what it says, and when the user is told of a failure."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lighthouse.client import SlotState
from replica.errors import UserError
from replica.leaving import leave
from replica.saves import LastSave


class Group:
    """Group 2 of job "job", with or without saves; `said` is the order of what it does.

    others: the states of other groups, all of which have step 5; None: the Lighthouse does not answer.
    """

    def __init__(
        self,
        *,
        step: int,
        others: tuple[SlotState, ...] | None = (),
        saves: bool = True,
        alone: bool = False,
        last: LastSave | None = None,
        failure: str | None = None,
    ) -> None:
        self.said: list[object] = []
        self.warnings: list[str] = []
        self.step, self.rank = step, 0
        self.config = SimpleNamespace(job="job", group=2, steps=9)
        self.notices = SimpleNamespace(draining=True)
        self.saves = None
        if saves:
            self.saves = SimpleNamespace(
                is_alone=alone,
                last=last,
                failure=failure,
                before_leaving=lambda: self.said.append("save"),
                settle=lambda: self.said.append("settle"),
            )
        self.stopwatch = SimpleNamespace(
            time=lambda doing: nullcontext(), seconds=lambda: SimpleNamespace(save=0.0)
        )
        self.ranks = SimpleNamespace(
            first_then_all=lambda action, timeout_s: action(), share=lambda values: [tuple(values)]
        )
        rows = [{"group": 2, "state": "left", "step": step, "gone_s": 0.1}]
        rows += [
            {"group": 3 + n, "state": each, "step": 5, "gone_s": 9.0} for n, each in enumerate(others or ())
        ]
        self.document = None if others is None else {"jobs": [{"job": "job", "groups": rows}]}
        self.stream = SimpleNamespace(
            goodbye=lambda *, finished, step: self.said.append((finished, step)), status=lambda: self.document
        )
        self.record = SimpleNamespace(group_event=lambda kind, **values: None)

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def leave(self) -> list[object]:
        leave(cast(Any, self))
        return self.said


LIVES, LEFT = SlotState.TRAINING, SlotState.LEFT


def test_while_others_go_on_nothing_is_saved_and_nothing_fails() -> None:
    group = Group(step=5, others=(LEFT, LIVES), failure="too slow")
    assert group.leave() == [(False, 5), "settle"]
    assert group.warnings == []


def test_the_last_of_those_that_leave_together_saves() -> None:
    assert Group(step=5, others=(LEFT, LEFT)).leave() == [(False, 5), "save"]
    with pytest.raises(UserError, match="the disk is full"):
        Group(step=5, others=(LEFT,), failure="the disk is full").leave()


def test_a_lighthouse_that_does_not_answer_is_no_proof_of_others() -> None:
    group = Group(step=5, others=None, failure="the disk is full")
    with pytest.raises(UserError, match="the disk is full"):
        group.leave()
    assert group.said == [(False, 5), "save"]


def test_one_that_trained_alone_saves_before_it_goes() -> None:
    assert Group(step=5, alone=True).leave() == ["save", (False, 5)]
    with pytest.raises(UserError, match="too slow"):
        Group(step=5, alone=True, failure="too slow").leave()


def test_one_that_has_no_state_leaves_none_behind() -> None:
    assert Group(step=0).leave() == [(False, 0)]


def test_without_saves_there_is_only_a_goodbye() -> None:
    assert Group(step=5, saves=False, others=(LIVES,)).leave() == [(False, 5)]
    assert Group(step=9, saves=False).leave() == [(True, 9)]


@pytest.mark.parametrize(("others", "lost"), [((LEFT,), True), ((LIVES,), False), (None, False)])
def test_a_state_that_is_lost_with_its_last_group_is_told(
    others: tuple[SlotState, ...] | None, lost: bool
) -> None:
    group = Group(step=5, saves=False, others=others)
    group.leave()
    assert ["the state of step 5 is lost with this one" in text for text in group.warnings] == [True] * lost


def test_the_job_is_finished_only_with_its_last_save() -> None:
    assert Group(step=9, last=LastSave.DURABLE).leave() == [(True, 9)]
    for last in (LastSave.ATTEMPT_OVER, LastSave.UNKNOWN):
        assert Group(step=9, last=last).leave() == [(False, 9)]
    failed = Group(step=9, last=LastSave.IN_VAIN, failure="the disk is full")
    with pytest.raises(UserError, match="the disk is full"):
        failed.leave()
    assert failed.said == [(False, 9)]
