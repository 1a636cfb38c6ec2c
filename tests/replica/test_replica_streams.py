"""How a group starts that was told to heal and found nobody ahead: never as the whole job."""

from typing import Any

import pytest

from replica.errors import RestartError, UserError
from replica.streams import StartCheck, act_on, check_start

ALONE = [{"group": 0, "step": 0}]
WITH_PEER = [{"group": 0, "step": 0}, {"group": 1, "step": 41}]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (None, StartCheck.GO_ON),
        ({}, StartCheck.GO_ON),
        ({"max_step": 0, "groups": ALONE}, StartCheck.GO_ON),
        ({"max_step": 42, "groups": WITH_PEER}, StartCheck.TRY_AGAIN),
        ({"max_step": 42, "groups": ALONE}, StartCheck.JOB_LOST),
        ({"max_step": 42, "groups": [{"group": 0, "step": 42}]}, StartCheck.JOB_LOST),
        ({"max_step": 42, "groups": [{"group": 1, "step": 0}]}, StartCheck.JOB_LOST),
        ({"max_step": 42}, StartCheck.JOB_LOST),
        ({"max_step": 42, "finished_step": 42, "groups": WITH_PEER}, StartCheck.FINISHED),
        ({"max_step": 42, "finished_step": None, "groups": ALONE}, StartCheck.JOB_LOST),
    ],
)
def test_check_start(record: dict[str, Any] | None, expected: StartCheck) -> None:
    assert check_start(record, group=0) is expected


def test_going_on_and_finished_are_told_apart() -> None:
    assert act_on(StartCheck.GO_ON, "tiny") is False
    assert act_on(StartCheck.FINISHED, "tiny") is True


def test_a_living_peer_is_worth_another_try() -> None:
    with pytest.raises(RestartError, match="a group of job tiny lives but gave no state"):
        act_on(StartCheck.TRY_AGAIN, "tiny")


def test_a_lost_job_needs_its_owner() -> None:
    with pytest.raises(UserError, match="forget ADDR tiny"):
        act_on(StartCheck.JOB_LOST, "tiny")
