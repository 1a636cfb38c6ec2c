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
        fenced: bool = False,
    ) -> None:
        self.said: list[object] = []
        self.warnings: list[str] = []
        self.step, self.rank = step, 0
        backstop = SimpleNamespace(grace_s=20.0) if saves else None
        self.config = SimpleNamespace(job="job", group=2, steps=9, backstop=backstop)
        self.order: list[str] = []
        self.may_save_s = 0.0
        self.notices = SimpleNamespace(draining=True, leave=lambda: self.order.append("no clock"))
        self.saves = None
        if saves:
            self.saves = SimpleNamespace(
                is_alone=alone,
                last=last,
                failure=failure,
                is_fenced=fenced,
                before_leaving=self._save,
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
        self.after_the_save = self.document
        self.stream = SimpleNamespace(
            goodbye=self._goodbye, status=lambda: self.document, left=lambda: self.order.append("left")
        )
        self.record = SimpleNamespace(group_event=lambda kind, **values: None)

    def _goodbye(self, *, finished: bool, step: int, may_save_s: float) -> None:
        self.said.append((finished, step))
        self.order.append("goodbye")
        self.may_save_s = may_save_s

    def _save(self) -> None:
        self.said.append("save")
        self.order.append("save")
        self.document = self.after_the_save

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


def test_a_save_that_fails_is_no_failure_where_others_turn_out_to_go_on() -> None:
    group = Group(step=5, others=(LIVES,), failure="the disk is full")
    group.document = None
    assert group.leave() == [(False, 5), "save"]


def test_a_newer_quorum_that_has_published_proves_others() -> None:
    group = Group(step=5, others=None, failure="a newer quorum has published", fenced=True)
    assert group.leave() == [(False, 5), "save"]
    alone = Group(step=5, others=(), failure="a newer quorum has published", fenced=True)
    with pytest.raises(UserError, match="a newer quorum has published"):
        alone.leave()


@pytest.mark.parametrize("others", [None, (), (LEFT,), (LIVES,)])
def test_who_starts_waits_until_it_is_known_what_became_of_the_last_save(
    others: tuple[SlotState, ...] | None,
) -> None:
    group = Group(step=5, others=others)
    group.leave()
    assert group.order == ["no clock", "goodbye", *(["save"] if others != (LIVES,) else []), "left"]
    assert group.may_save_s > 20.0


def test_a_last_save_that_breaks_is_not_waited_for() -> None:
    group = Group(step=5)
    group.ranks.share = None
    with pytest.raises(TypeError):
        group.leave()
    assert group.order == ["no clock", "goodbye", "left"]


@pytest.mark.parametrize(
    "group",
    [
        Group(step=9, last=LastSave.DURABLE),
        Group(step=0),
        Group(step=5, saves=False),
        Group(step=5, alone=True),
    ],
)
def test_who_has_nothing_to_save_is_not_waited_for(group: Group) -> None:
    group.leave()
    assert group.may_save_s == 0.0
    assert "left" not in group.order


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
