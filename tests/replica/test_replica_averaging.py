"""The mean gradient: over the micro-batches of the step, whoever lives, and nothing missing unseen."""

import math
from collections.abc import Sequence

import pytest
import torch
from gradient_members import ROUNDS, Failing, Member, reduce_all
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from replica.alone import NoPeers
from replica.averaging import ExactGradientSum, Reduced, ReduceFailed, gradient_sum, mean_loss
from replica.config import Mode
from replica.rounds import Peer, deal

# Constant gradients of three groups that run the same number of rounds each: their mean is 3.
GRADIENT = {0: 1.0, 1: 2.0, 2: 6.0}

both_modes = pytest.mark.parametrize("mode", list(Mode))
# With how many collectives that go well before one fails: the exact sum needs two.
failing_tries = pytest.mark.parametrize(("mode", "good"), [(Mode.FAST, 0), (Mode.EXACT, 0), (Mode.EXACT, 1)])


def dealt(groups: Sequence[int]) -> tuple[int, ...]:
    return deal(
        step=0, quorum_id=1, rounds=ROUNDS, members=[Peer(group=group, step=0) for group in groups]
    ).owners


def ready(mode: Mode, groups: int) -> list[Member]:
    """Members that have run all rounds of a step between them."""
    members = [Member(mode) for _ in range(groups)]
    for index in range(ROUNDS):
        members[index % groups].run_random(index)
    return members


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@both_modes
def test_gradients_1_2_6_of_three_groups_give_exactly_3(mode: Mode) -> None:
    members = {group: Member(mode) for group in GRADIENT}
    for index, owner in enumerate(dealt(list(members))):
        members[owner].run(index, GRADIENT[owner])
    for result, member in zip(reduce_all(list(members.values())), members.values(), strict=True):
        assert result.missing_rounds == ()
        member.sum.write_mean()
        assert member.gradients() == [3.0]


@both_modes
@pytest.mark.parametrize("alive", [[0], [0, 1], [1, 2], [0, 1, 2], [0, 1, 2, 3, 4], list(range(8))])
def test_the_divisor_is_the_step_whatever_the_number_of_living_groups(mode: Mode, alive: list[int]) -> None:
    """Round i always has the gradient 6 * i, so the mean is 15 by whomever they were run."""
    members = {group: Member(mode) for group in alive}
    for index, owner in enumerate(dealt(alive)):
        members[owner].run(index, 6.0 * index)
    for result, member in zip(reduce_all(list(members.values())), members.values(), strict=True):
        assert result.missing_rounds == ()
        member.sum.write_mean()
        assert member.gradients() == [15.0]


@settings(max_examples=25, deadline=None)
@given(owners=st.lists(st.integers(0, 3), min_size=ROUNDS, max_size=ROUNDS), data=st.data())
def test_exact_means_are_the_same_bits_whoever_ran_which_round_when(
    owners: list[int], data: st.DataObject
) -> None:
    alone = Member(Mode.EXACT)
    for index in range(ROUNDS):
        alone.run_random(index)
    reduce_all([alone])
    wanted = alone.mean()
    members = [Member(Mode.EXACT) for _ in range(4)]
    for index in data.draw(st.permutations(range(ROUNDS))):
        members[owners[index]].run_random(index)
        if data.draw(st.booleans()):
            reduce_all([member for member in members if data.draw(st.booleans())] or members)
    for result, member in zip(reduce_all(members), members, strict=True):
        assert result.missing_rounds == ()
        assert result.losses == tuple(index / 3 for index in range(ROUNDS))
        assert same(member.mean(), wanted)


@both_modes
def test_a_joiner_that_adds_nothing_changes_nothing_and_gets_the_mean(mode: Mode) -> None:
    worker, joiner = Member(mode), Member(mode)
    for index in range(ROUNDS):
        worker.run(index, 3.0)
    reduce_all([worker, joiner])
    for member in (worker, joiner):
        member.sum.write_mean()
        assert member.gradients() == [3.0]


@both_modes
def test_a_member_that_does_not_contribute_adds_nothing_of_what_it_holds(mode: Mode) -> None:
    worker, idle = Member(mode), Member(mode)
    for index in range(ROUNDS):
        worker.run(index, 3.0, loss=1.5)
    huge = idle.parameters["b.weight"]
    huge.grad = torch.full_like(huge, 1e38)
    idle.sum.add_round(1, 7.0)
    idle.run(2, math.nan)
    for result in reduce_all([worker], idle=[idle]):
        assert result == Reduced(counts=(1,) * ROUNDS, losses=(1.5,) * ROUNDS)
    for member in (worker, idle):
        member.sum.write_mean()
        assert member.gradients() == [3.0]
    assert idle.sum.held == {1, 2}


@both_modes
@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 3), min_size=ROUNDS, max_size=ROUNDS))
def test_missing_and_doubled_rounds_show(mode: Mode, counts: list[int]) -> None:
    members = [Member(mode) for _ in range(3)]
    for index, count in enumerate(counts):
        for member in members[:count]:
            member.run(index, 1.0)
    for result in reduce_all(members):
        assert result.counts == tuple(counts)
        assert result.missing_rounds == tuple(index for index in range(ROUNDS) if counts[index] != 1)


@both_modes
def test_a_round_cannot_be_added_twice(mode: Mode) -> None:
    member = Member(mode)
    member.run(2, 1.0)
    with pytest.raises(ValueError, match="round 2"):
        member.run(2, 1.0)
    assert member.sum.held == {2}


@both_modes
def test_losses_come_back_by_round(mode: Mode) -> None:
    members = [Member(mode), Member(mode)]
    for index in range(ROUNDS):
        members[index % 2].run(index, 0.0, loss=index + 0.5)
    for result in reduce_all(members):
        assert result.losses == tuple(index + 0.5 for index in range(ROUNDS))
        assert result.finite


@settings(max_examples=25, deadline=None)
@given(loss=st.floats())
def test_an_exact_loss_comes_back_bit_for_bit(loss: float) -> None:
    members = [Member(Mode.EXACT, rounds=1), Member(Mode.EXACT, rounds=1)]
    members[1].run(0, 1.0, loss=loss)
    for result in reduce_all(members):
        assert result.losses[0].hex() == loss.hex()
        assert result.finite == math.isfinite(loss)


@both_modes
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_a_round_that_is_not_finite_is_named_to_all(mode: Mode, bad: float, where: str) -> None:
    members = [Member(mode), Member(mode)]
    for index in range(ROUNDS):
        wrong = index == 2
        gradient = bad if wrong and where == "gradient" else 1.0
        members[index % 2].run(index, gradient, loss=bad if wrong and where == "loss" else 0.0)
    for result in reduce_all(members):
        assert result.bad_rounds == (2,)
        assert not result.finite
        assert result.missing_rounds == ()
        assert [index for index, loss in enumerate(result.losses) if not math.isfinite(loss)] == (
            [2] if where == "loss" else []
        )


@both_modes
def test_a_single_number_that_is_not_finite_is_enough(mode: Mode) -> None:
    for name in ("b.weight", "a.scalar", "c.brain", "e.double", "f.half"):
        member = Member(mode, rounds=1)
        gradient = torch.ones_like(member.parameters[name])
        gradient.view(-1)[-1] = math.nan
        member.parameters[name].grad = gradient
        member.sum.add_round(0, 0.0)
        assert [result.bad_rounds for result in reduce_all([member])] == [(0,)]


@both_modes
def test_a_double_beyond_the_range_of_floats_is_bad_and_not_added(mode: Mode) -> None:
    member = Member(mode, rounds=2)
    member.parameters["e.double"].grad = torch.tensor([1.0, 1e39], dtype=torch.float64)
    member.sum.add_round(0, 0.0)
    member.run(1, 4.0)
    assert reduce_all([member]) == [Reduced(counts=(1, 1), losses=(0.0, 0.0), bad_rounds=(0,))]
    member.sum.write_mean()
    assert member.gradients() == [2.0]


def large(mode: Mode) -> list[Member]:
    """The sum of their gradients is too large for a float32."""
    members = [Member(mode), Member(mode)]
    for index in range(ROUNDS):
        weight = members[index % 2].parameters["b.weight"]
        weight.grad = torch.full_like(weight, 3e38)
        members[index % 2].sum.add_round(index, 0.0)
    return members


def test_a_float_sum_that_overflows_is_not_finite() -> None:
    for result in reduce_all(large(Mode.FAST)):
        assert result.overflow
        assert not result.finite
        assert result.bad_rounds == ()


def test_an_exact_sum_does_not_overflow() -> None:
    members = large(Mode.EXACT)
    for result, member in zip(reduce_all(members), members, strict=True):
        assert result.finite
        assert torch.equal(member.mean()["b.weight"], torch.full((3, 2), 3e38))


@both_modes
def test_reset_forgets_everything_even_what_was_not_finite(mode: Mode) -> None:
    member = Member(mode)
    member.run(0, math.nan, loss=math.inf)
    member.run(1, 1e4)
    member.sum.reset()
    assert member.sum.held == frozenset()
    (result,) = reduce_all([member])
    assert result == Reduced(counts=(0,) * ROUNDS, losses=(0.0,) * ROUNDS)
    member.run(0, 6.0)
    (result,) = reduce_all([member])
    assert result.finite
    member.sum.write_mean()
    assert member.gradients() == [1.0]


@both_modes
def test_taking_a_round_clears_the_gradients(mode: Mode) -> None:
    member = Member(mode)
    member.run(0, 1.0)
    assert all(parameter.grad is None for parameter in member.parameters.values())


@both_modes
def test_a_parameter_that_was_not_used_counts_as_zero(mode: Mode) -> None:
    member = Member(mode, rounds=2)
    member.run(0, 2.0)
    member.parameters["b.weight"].grad = torch.full((3, 2), 4.0)
    member.sum.add_round(1, 0.0)
    reduce_all([member])
    mean = member.mean()
    assert mean["b.weight"].tolist() == [[3.0, 3.0]] * 3
    assert mean["a.scalar"].item() == 1.0


@both_modes
def test_the_mean_has_the_shape_and_type_of_its_parameter(mode: Mode) -> None:
    member = Member(mode, rounds=1)
    member.run(0, 2.0)
    reduce_all([member])
    member.sum.write_mean()
    for parameter in member.parameters.values():
        assert parameter.grad is not None
        assert (parameter.grad.shape, parameter.grad.dtype) == (parameter.shape, parameter.dtype)


@both_modes
def test_each_parameter_gets_its_own_gradient(mode: Mode) -> None:
    member = Member(mode, rounds=2)
    wanted = {name: torch.randn(parameter.shape) for name, parameter in member.parameters.items()}
    for index in range(2):
        for name, parameter in member.parameters.items():
            parameter.grad = wanted[name].to(parameter.dtype)
        member.sum.add_round(index, 0.0)
    reduce_all([member])
    for name, mean in member.mean().items():
        assert torch.equal(mean, wanted[name].to(mean.dtype))


@failing_tries
def test_rounds_stay_held_and_a_second_try_gives_the_same_bits(mode: Mode, good: int) -> None:
    members = ready(mode, 3)
    first_results = reduce_all(members)
    first = [member.mean() for member in members]
    assert [member.sum.held for member in members] == [{0, 3}, {1, 4}, {2, 5}]
    for member in members:
        assert isinstance(member.sum.reduce(Failing(RuntimeError("peer"), good)), ReduceFailed)
    assert reduce_all(members) == first_results
    assert all(same(member.mean(), before) for member, before in zip(members, first, strict=True))
    assert [member.sum.held for member in members] == [{0, 3}, {1, 4}, {2, 5}]


@both_modes
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("peer\nsecond line"), "RuntimeError: peer"),
        (TimeoutError(""), "TimeoutError"),
    ],
)
def test_a_failure_is_a_value(mode: Mode, error: Exception, text: str) -> None:
    assert Member(mode).sum.reduce(Failing(error)) == ReduceFailed(error=text)


@failing_tries
def test_an_abandoned_collective_that_writes_late_harms_nothing(mode: Mode, good: int) -> None:
    member, untouched = ready(mode, 1)[0], ready(mode, 1)[0]
    failing = Failing(RuntimeError("peer"), good)
    assert isinstance(member.sum.reduce(failing), ReduceFailed)
    for abandoned in failing.seen:
        abandoned.fill_(77)
    assert reduce_all([member]) == reduce_all([untouched])
    for abandoned in failing.seen:
        abandoned.fill_(99)
    assert same(member.mean(), untouched.mean())


@both_modes
def test_a_bug_is_not_taken_for_a_failed_peer(mode: Mode) -> None:
    with pytest.raises(KeyError):
        Member(mode).sum.reduce(Failing(KeyError("bug")))


class Counting:
    """Collectives of one member that note how many bytes are sent."""

    def __init__(self) -> None:
        self.bytes = 0

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        self.bytes += tensor.nbytes

    max_in_place = sum_in_place


@pytest.mark.parametrize(("mode", "wire", "memory"), [(Mode.FAST, 4, 8), (Mode.EXACT, 9, 22)])
def test_bytes_are_as_documented(mode: Mode, wire: int, memory: int) -> None:
    size, notes = 100_000, 3 * 8 * ROUNDS
    one = gradient_sum(mode, {"weight": nn.Parameter(torch.zeros(size))}, ROUNDS)
    counting = Counting()
    one.reduce(counting)
    assert counting.bytes == one.wire_bytes
    assert wire * size < one.wire_bytes <= wire * size + notes
    assert memory * size < one.bytes <= memory * size + notes


def test_the_exact_wire_is_at_most_2_3_times_the_fast_one() -> None:
    parameters = {"weight": nn.Parameter(torch.zeros(100_000))}
    exact, fast = (gradient_sum(mode, parameters, ROUNDS).wire_bytes for mode in (Mode.EXACT, Mode.FAST))
    assert exact <= 2.3 * fast


def test_the_mode_decides_the_form() -> None:
    assert isinstance(Member(Mode.EXACT).sum, ExactGradientSum)
    assert not isinstance(Member(Mode.FAST).sum, ExactGradientSum)


@settings(max_examples=50)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=20))
def test_mean_loss(losses: list[int]) -> None:
    assert mean_loss(losses) == sum(losses) / len(losses)


@pytest.mark.parametrize("mode", Mode)
def test_a_frozen_parameter_gets_no_gradient(mode: Mode) -> None:
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    trained = nn.Parameter(torch.ones(2))
    total = gradient_sum(mode, {"frozen": frozen, "trained": trained}, rounds=1)
    trained.grad = torch.full((2,), 4.0)
    total.add_round(0, 0.5)
    total.reduce(NoPeers())
    total.write_mean()
    assert frozen.grad is None
    assert trained.grad is not None
    assert trained.grad.tolist() == [4.0, 4.0]
