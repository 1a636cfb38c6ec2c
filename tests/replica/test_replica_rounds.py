"""Dealing rounds: every round exactly once, work in hand kept, fairly, the same whoever computes it."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.errors import UserError
from replica.rounds import MAX_ROUNDS, Peer, Plan, as_mask, deal, from_mask, micro_batch_of, rounds_per_step

STEP = 3
ROUNDS = st.integers(1, 30)
NUMBERS = st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True)
# Peers at this step and at others, whose held rounds may overlap, and may not exist at all.
PEERS = st.lists(
    st.builds(
        Peer,
        group=st.integers(0, 1000),
        step=st.sampled_from((STEP, STEP, STEP, STEP - 1, 0)),
        held=st.frozensets(st.integers(0, 33), max_size=6),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda peer: peer.group,
).filter(lambda peers: any(peer.step == STEP for peer in peers))


def deal_to(peers: list[Peer], rounds: int) -> Plan:
    return deal(step=STEP, quorum_id=7, rounds=rounds, members=peers)


def empty_handed(groups: list[int]) -> list[Peer]:
    return [Peer(group=group, step=STEP) for group in groups]


def conflicts(peer: Peer, peers: list[Peer]) -> bool:
    """Whether another peer holds a round that this one holds too."""
    return any(other.held & peer.held for other in peers if other is not peer)


def check(plan: Plan, peers: list[Peer], rounds: int) -> None:
    """What must hold whatever anybody holds."""
    up_to_date = [peer for peer in peers if peer.step == STEP]
    groups = {peer.group for peer in up_to_date}
    assert len(plan.owners) == rounds
    assert set(plan.owners) <= groups
    to_run = Counter(index for group in groups for index in plan.rounds_of(group))
    kept = Counter(index for group in groups for index in plan.held_by(group))
    assert kept + to_run == Counter(range(rounds)), "each round is run or kept by exactly one group"
    shares = [len(plan.rounds_of(group)) for group in groups]
    assert max(shares) - min(shares) <= 1
    for peer in up_to_date:
        assert plan.held_by(peer.group) in (frozenset(), peer.held), "a sum cannot be cut in pieces"
        sensible = all(index < rounds for index in peer.held)
        if sensible and not conflicts(peer, up_to_date):
            assert plan.held_by(peer.group) == peer.held
        if sensible and not plan.held_by(peer.group) and peer.held:
            assert peer.held & plan.held, "who drops what it holds does so for one who keeps it"


@given(peers=PEERS, rounds=ROUNDS)
def test_each_round_has_one_owner_and_what_is_held_is_kept(peers: list[Peer], rounds: int) -> None:
    check(deal_to(peers, rounds), peers, rounds)


def test_twenty_thousand_random_histories() -> None:
    """Groups run what they are dealt, get lost, come back with old work, and share what is missing."""
    random = Random(0)
    conflicting = 0
    for _ in range(2000):
        rounds = random.randint(1, 12)
        held: dict[int, frozenset[int]] = {group: frozenset() for group in range(random.randint(1, 6))}
        for _ in range(10):
            there = random.sample(list(held), random.randint(1, len(held)))
            peers = [Peer(group=group, step=STEP, held=held[group]) for group in there]
            plan = deal_to(peers, rounds)
            check(plan, peers, rounds)
            conflicting += any(conflicts(peer, peers) for peer in peers)
            for group in there:
                dealt = plan.rounds_of(group)
                held[group] = plan.held_by(group) | frozenset(dealt[: random.randint(0, len(dealt))])
            if random.random() < 0.4:
                held[random.choice(there)] = frozenset()
    assert conflicting > 1000


@given(peers=PEERS, rounds=ROUNDS, data=st.data())
def test_the_order_in_which_members_are_named_makes_no_difference(
    peers: list[Peer], rounds: int, data: st.DataObject
) -> None:
    one = deal_to(peers, rounds)
    other = deal_to(data.draw(st.permutations(peers)), rounds)
    assert one == other
    assert one.fingerprint == other.fingerprint


@given(peers=PEERS, rounds=ROUNDS)
def test_members_at_other_steps_change_nothing(peers: list[Peer], rounds: int) -> None:
    up_to_date = [peer for peer in peers if peer.step == STEP]
    assert deal_to(peers, rounds) == deal_to(up_to_date, rounds)


@given(groups=NUMBERS, rounds=ROUNDS, beyond=st.integers(0, MAX_ROUNDS))
def test_who_claims_a_round_that_does_not_exist_holds_nothing(
    groups: list[int], rounds: int, beyond: int
) -> None:
    claim = Peer(group=groups[0], step=STEP, held=frozenset({0, rounds + beyond}))
    assert deal_to([claim, *empty_handed(groups[1:])], rounds) == deal_to(empty_handed(groups), rounds)


@pytest.mark.parametrize(
    ("held", "keepers"),
    [
        ({4: {0}, 9: {0}}, {4}),
        ({4: {0}, 9: {0, 1}}, {9}),
        ({4: {0, 1}, 9: {1, 2}, 12: {3}}, {4, 12}),
        ({4: {0, 1}, 9: {1, 2}, 12: {2, 3}}, {4, 12}),
        ({4: {0}, 9: {1}, 12: {2}}, {4, 9, 12}),
    ],
)
def test_of_two_that_hold_the_same_round_one_drops_all(held: dict[int, set[int]], keepers: set[int]) -> None:
    peers = [Peer(group=group, step=STEP, held=frozenset(rounds)) for group, rounds in held.items()]
    plan = deal_to(peers, 6)
    assert {group for group in held if plan.held_by(group)} == keepers
    assert all(plan.held_by(group) == held[group] for group in keepers)


def test_only_the_rounds_of_the_dead_are_run_again() -> None:
    survivors = [
        Peer(group=0, step=STEP, held=frozenset({0, 3})),
        Peer(group=2, step=STEP, held=frozenset({2, 5})),
    ]
    plan = deal_to(survivors, 6)
    assert plan.owners == (0, 0, 2, 0, 2, 2)
    assert (plan.rounds_of(0), plan.rounds_of(2)) == ((1,), (4,))


def test_groups_beyond_the_rounds_are_spares() -> None:
    plan = deal_to(empty_handed([4, 9, 2]), 2)
    assert plan.owners == (2, 4)
    assert plan.rounds_of(9) == ()


def test_a_joiner_is_dealt_nothing() -> None:
    peers = [*empty_handed([0, 2]), Peer(group=1, step=STEP - 1, held=frozenset({0}))]
    plan = deal_to(peers, 6)
    assert plan.rounds_of(1) == ()
    assert plan.held_by(1) == frozenset()


@pytest.mark.parametrize("members", [[], [Peer(group=0, step=STEP - 1)]])
def test_nobody_up_to_date_is_a_bug_of_the_caller(members: list[Peer]) -> None:
    with pytest.raises(ValueError, match="no group is up to date"):
        deal_to(members, 2)


@given(held=st.frozensets(st.integers(0, MAX_ROUNDS - 1)))
def test_held_rounds_pass_the_wire(held: frozenset[int]) -> None:
    mask = as_mask(held)
    assert len(mask) == MAX_ROUNDS // 8
    assert from_mask(mask) == held


@given(
    step=st.integers(0, 2**40),
    quorum_id=st.integers(-1, 2**40),
    owners=st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple),
    data=st.data(),
)
def test_another_plan_has_another_fingerprint(
    step: int, quorum_id: int, owners: tuple[int, ...], data: st.DataObject
) -> None:
    places = st.integers(0, len(owners) - 1)
    held = data.draw(st.frozensets(places))
    plan = Plan(step=step, quorum_id=quorum_id, owners=owners, held=held)
    place = data.draw(places)
    moved = (*owners[:place], owners[place] + 1, *owners[place + 1 :])
    others = [
        Plan(step=step + 1, quorum_id=quorum_id, owners=owners, held=held),
        Plan(step=step, quorum_id=quorum_id + 1, owners=owners, held=held),
        Plan(step=step, quorum_id=quorum_id, owners=moved, held=held),
        Plan(step=step, quorum_id=quorum_id, owners=(*owners, 0), held=held),
        Plan(step=step, quorum_id=quorum_id, owners=owners, held=held ^ {place}),
    ]
    assert plan.fingerprint not in {other.fingerprint for other in others}
    assert 0 <= plan.fingerprint < 2**63


def test_a_fingerprint_does_not_depend_on_the_order_in_which_rounds_came_to_be_held() -> None:
    # 0 and 8 fall into the same slot of a small set: they are listed in the order of their coming.
    one, other = frozenset([0, 8]), frozenset([8, 0])
    plans = [Plan(step=0, quorum_id=1, owners=(0,) * 9, held=held) for held in (one, other)]
    assert plans[0].fingerprint == plans[1].fingerprint


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


def test_too_many_rounds_for_the_wire_are_refused() -> None:
    assert rounds_per_step(2 * MAX_ROUNDS, 2) == MAX_ROUNDS
    with pytest.raises(UserError, match=f"micro_batches = 8194 makes {MAX_ROUNDS + 1} rounds"):
        rounds_per_step(2 * MAX_ROUNDS + 2, 2)
