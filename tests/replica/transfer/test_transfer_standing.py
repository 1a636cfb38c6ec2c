"""What faults add up to: two lies are too many, broken connections only in a row."""

import pytest

from replica.transfer.report import Fault
from replica.transfer.standing import (
    FIRST_PAUSE_S,
    LIES,
    LONGEST_PAUSE_S,
    MAX_FAILURES_IN_A_ROW,
    PASSING,
    Standing,
)


@pytest.mark.parametrize("fault", sorted(LIES, key=str))
def test_the_second_lie_is_the_last(fault: Fault) -> None:
    standing = Standing()
    standing.blame(fault)
    standing.praise()
    assert standing.out is None
    standing.blame(fault)
    assert standing.out is fault
    assert standing.lied_out


@pytest.mark.parametrize("fault", sorted(PASSING, key=str))
def test_broken_connections_count_only_in_a_row(fault: Fault) -> None:
    standing = Standing()
    for _ in range(3 * MAX_FAILURES_IN_A_ROW):
        standing.blame(fault)
        standing.praise()
    for _ in range(MAX_FAILURES_IN_A_ROW - 1):
        standing.blame(fault)
    assert standing.out is None
    standing.blame(fault)
    assert standing.out is fault
    assert not standing.lied_out


@pytest.mark.parametrize("fault", sorted(set(Fault) - LIES - PASSING, key=str))
def test_every_other_fault_is_final(fault: Fault) -> None:
    standing = Standing()
    standing.blame(fault)
    standing.blame(Fault.UNREACHABLE)
    assert standing.out is fault


def test_pauses_grow_up_to_a_bound() -> None:
    standing, pauses = Standing(), []
    for _ in range(MAX_FAILURES_IN_A_ROW):
        standing.blame(Fault.STALLED)
        pauses.append(standing.pause_s(1.0))
        assert standing.pause_s(0.0) == pytest.approx(pauses[-1] / 2)
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
