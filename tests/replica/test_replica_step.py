"""The decisions of a step: all ranks the same and ready, and no sum committed that is not whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.averaging import Reduced, ReduceFailed
from replica.ledger import Outcome, Reason
from replica.step import Ballot, agree, outcome, verdict

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


def reduced(
    *, counts: tuple[int, ...] = (1, 1), bad: tuple[int, ...] = (), overflow: bool = False
) -> Reduced:
    return Reduced(counts=counts, losses=(0.5,) * len(counts), bad_rounds=bad, overflow=overflow)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (reduced(), Reason.NONE),
        (reduced(bad=(1,)), Reason.NON_FINITE),
        (reduced(overflow=True), Reason.NON_FINITE),
        (reduced(counts=(1, 0)), Reason.ROUNDS_MISSING),
        (reduced(counts=(2, 1)), Reason.ROUNDS_MISSING),
        (reduced(counts=(1, 0), bad=(0,)), Reason.ROUNDS_MISSING),
        (ReduceFailed(error="RuntimeError: gone"), Reason.REDUCE_FAILED),
    ],
)
def test_verdict(result: Reduced | ReduceFailed, reason: Reason) -> None:
    assert verdict(result) is reason


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple))
def test_a_sum_is_committed_only_when_each_round_is_in_it_once(counts: tuple[int, ...]) -> None:
    assert (verdict(reduced(counts=counts)) is Reason.NONE) == (set(counts) == {1})


@pytest.mark.parametrize("reason", Reason)
def test_finished_rounds_are_kept_unless_they_may_be_wrong(reason: Reason) -> None:
    expected = {Reason.NONE: Outcome.COMMITTED, Reason.NON_FINITE: Outcome.DISCARDED}
    assert outcome(reason) is expected.get(reason, Outcome.RETRIED)
