"""Failures in a row: bounded where a new incarnation may help, never for a group that has the state."""

import pytest

from replica.errors import RestartError, UserError
from replica.failures import LONGEST_PAUSE_S, MAX_FAILED_HEALS, MAX_FAILED_STARTS, Failures
from replica.ledger import Reason


def test_non_finite_steps_are_bounded() -> None:
    failures = Failures(max_non_finite=3)
    for _ in range(2):
        failures.count(Reason.NON_FINITE, step=7)
    failures.count(Reason.NONE, step=7)
    for _ in range(2):
        failures.count(Reason.NON_FINITE, step=7)
    with pytest.raises(UserError, match="3 times in a row"):
        failures.count(Reason.NON_FINITE, step=7)


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        (Reason.HEAL_FAILED, MAX_FAILED_HEALS),
        (Reason.CONFIGURE_FAILED, MAX_FAILED_STARTS),
        (Reason.GROUP_DISAGREED, MAX_FAILED_STARTS),
    ],
)
def test_a_group_without_the_state_comes_back_as_a_new_incarnation(reason: Reason, limit: int) -> None:
    failures = Failures(max_non_finite=5)
    for _ in range(limit - 1):
        failures.count(reason, step=0)
    with pytest.raises(RestartError):
        failures.count(reason, step=0)


def test_a_group_that_has_the_state_never_gives_up_and_pauses_longer_and_longer() -> None:
    failures = Failures(max_non_finite=5)
    pauses = []
    for _ in range(10 * MAX_FAILED_STARTS):
        failures.count(Reason.CONFIGURE_FAILED, step=7)
        pauses.append(failures.pause_s)
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    failures.count(Reason.NONE, step=7)
    assert failures.pause_s == 0


def test_deaths_of_peers_cause_no_pause() -> None:
    failures = Failures(max_non_finite=5)
    for _ in range(100):
        failures.count(Reason.ATTEMPT_OVER, step=7)
        failures.count(Reason.REDUCE_FAILED, step=7)
        assert failures.pause_s == 0
