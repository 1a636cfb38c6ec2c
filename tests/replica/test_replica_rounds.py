"""Dealing rounds: every round exactly once, fairly, the same whoever computes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.errors import UserError
from replica.rounds import Plan, deal, micro_batch_of, rounds_per_step

GROUPS = st.lists(st.integers(0, 1000), min_size=1, max_size=12)
ROUNDS = st.integers(1, 30)


@given(groups=GROUPS, rounds=ROUNDS)
def test_every_round_is_dealt_to_exactly_one_living_group(groups: list[int], rounds: int) -> None:
    plan = deal(step=3, quorum_id=7, rounds=rounds, up_to_date=groups)
    dealt = sorted(index for group in set(groups) for index in plan.rounds_of(group))
    assert dealt == list(range(rounds))


@given(groups=GROUPS, rounds=ROUNDS)
def test_no_group_gets_more_than_one_round_more_than_another(groups: list[int], rounds: int) -> None:
    plan = deal(step=3, quorum_id=7, rounds=rounds, up_to_date=groups)
    shares = [len(plan.rounds_of(group)) for group in set(groups)]
    assert max(shares) - min(shares) <= 1


@given(groups=GROUPS, rounds=ROUNDS, data=st.data())
def test_the_order_in_which_groups_are_named_makes_no_difference(
    groups: list[int], rounds: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(groups))
    one = deal(step=3, quorum_id=7, rounds=rounds, up_to_date=groups)
    other = deal(step=3, quorum_id=7, rounds=rounds, up_to_date=shuffled)
    assert one == other
    assert one.fingerprint == other.fingerprint


def test_groups_beyond_the_rounds_are_spares() -> None:
    plan = deal(step=0, quorum_id=1, rounds=2, up_to_date=[4, 9, 2])
    assert plan.owners == (2, 4)
    assert plan.rounds_of(9) == ()


def test_a_joiner_is_dealt_nothing() -> None:
    assert deal(step=0, quorum_id=1, rounds=6, up_to_date=[0, 2]).rounds_of(1) == ()


def test_nobody_up_to_date_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no group is up to date"):
        deal(step=0, quorum_id=1, rounds=2, up_to_date=[])


@given(
    step=st.integers(0, 2**40),
    quorum_id=st.integers(-1, 2**40),
    owners=st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple),
    data=st.data(),
)
def test_another_plan_has_another_fingerprint(
    step: int, quorum_id: int, owners: tuple[int, ...], data: st.DataObject
) -> None:
    plan = Plan(step=step, quorum_id=quorum_id, owners=owners)
    place = data.draw(st.integers(0, len(owners) - 1))
    moved = (*owners[:place], owners[place] + 1, *owners[place + 1 :])
    others = [
        Plan(step=step + 1, quorum_id=quorum_id, owners=owners),
        Plan(step=step, quorum_id=quorum_id + 1, owners=owners),
        Plan(step=step, quorum_id=quorum_id, owners=moved),
        Plan(step=step, quorum_id=quorum_id, owners=(*owners, 0)),
    ]
    assert plan.fingerprint not in {other.fingerprint for other in others}
    assert 0 <= plan.fingerprint < 2**63


@given(micro_batches=st.integers(1, 60), world_size=st.integers(1, 60))
def test_rounds_times_ranks_is_the_number_of_micro_batches(micro_batches: int, world_size: int) -> None:
    if micro_batches % world_size:
        with pytest.raises(UserError, match=f"micro_batches = {micro_batches} cannot be shared"):
            rounds_per_step(micro_batches, world_size)
    else:
        assert rounds_per_step(micro_batches, world_size) * world_size == micro_batches


def test_the_refusal_names_the_rank_counts_that_fit() -> None:
    with pytest.raises(UserError, match="use one of 1, 2, 3, 4, 6, 12 ranks"):
        rounds_per_step(12, 5)


@given(rounds=ROUNDS, world_size=st.integers(1, 8))
def test_rounds_and_ranks_cover_every_micro_batch_once(rounds: int, world_size: int) -> None:
    numbers = [
        micro_batch_of(index, rank, world_size) for index in range(rounds) for rank in range(world_size)
    ]
    assert sorted(numbers) == list(range(rounds * world_size))
