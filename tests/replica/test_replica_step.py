"""The decisions of a step: all ranks the same and ready, and no sum committed that is not whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.averaging import Reduced, ReduceFailed
from replica.ledger import Reason
from replica.step import Ballot, agree, verdict

BALLOT = Ballot(ready=True, quorum_id=7, step=3, plan=2**63 - 1)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(ranks=st.integers(1, 8), quorum_id=NUMBERS, step=NUMBERS, plan=NUMBERS)
def test_equal_ready_ballots_agree(ranks: int, quorum_id: int, step: int, plan: int) -> None:
    ballot = Ballot(ready=True, quorum_id=quorum_id, step=step, plan=plan)
    assert agree([ballot.values()] * ranks)


@pytest.mark.parametrize(
    "other",
    [
        Ballot(ready=False, quorum_id=7, step=3, plan=2**63 - 1),
        Ballot(ready=True, quorum_id=8, step=3, plan=2**63 - 1),
        Ballot(ready=True, quorum_id=7, step=4, plan=2**63 - 1),
        Ballot(ready=True, quorum_id=7, step=3, plan=5),
    ],
)
@given(ranks=st.integers(2, 6), data=st.data())
def test_one_differing_rank_is_enough_to_disagree(other: Ballot, ranks: int, data: st.DataObject) -> None:
    ballots = [BALLOT.values()] * ranks
    ballots[data.draw(st.integers(0, ranks - 1))] = other.values()
    assert not agree(ballots)


def test_ranks_that_are_equally_unready_do_not_agree() -> None:
    unready = Ballot(ready=False, quorum_id=7, step=3, plan=1)
    assert not agree([unready.values(), unready.values()])


def reduced(*, counts: tuple[int, ...] = (1, 1), finite: bool = True) -> Reduced:
    return Reduced(counts=counts, losses=(0.5,) * len(counts), finite=finite)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (reduced(), Reason.NONE),
        (reduced(finite=False), Reason.NON_FINITE),
        (reduced(counts=(1, 0)), Reason.ROUNDS_MISSING),
        (reduced(counts=(2, 1)), Reason.ROUNDS_MISSING),
        (reduced(counts=(1, 0), finite=False), Reason.ROUNDS_MISSING),
        (ReduceFailed(error="RuntimeError: gone"), Reason.REDUCE_FAILED),
    ],
)
def test_verdict(result: Reduced | ReduceFailed, reason: Reason) -> None:
    assert verdict(result) is reason
