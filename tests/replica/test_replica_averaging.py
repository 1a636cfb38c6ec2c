"""The mean gradient: over the micro-batches of the step, whoever lives, and nothing missing unseen."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from replica.averaging import GradientSum, Reduced, ReduceFailed, mean_loss
from replica.rounds import deal

ROUNDS = 6
# Constant gradients of three groups that run the same number of rounds each: their mean is 3.
GRADIENT = {0: 1.0, 1: 2.0, 2: 6.0}


class Member:
    """One group of one rank, with a parameter of every shape that matters."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.parameters = {
            "b.weight": nn.Parameter(torch.zeros(3, 2)),
            "a.scalar": nn.Parameter(torch.zeros(())),
            "c.half": nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)),
            "d.empty": nn.Parameter(torch.zeros(0, 5)),
        }
        self.sum = GradientSum(self.parameters, rounds)

    def run(self, index: int, gradient: float, loss: float = 0.0) -> None:
        for parameter in self.parameters.values():
            parameter.grad = torch.full_like(parameter, gradient)
        self.sum.add_round(index, loss)

    def gradients(self) -> list[float]:
        found = [parameter.grad for parameter in self.parameters.values()]
        return sorted({value for grad in found if grad is not None for value in grad.reshape(-1).tolist()})


def reduce_all(members: Sequence[Member]) -> list[Reduced]:
    """What each member gets when all of them reduce together."""
    buffers: list[torch.Tensor] = []
    for member in members:
        reduced(member, lambda buffer: buffers.append(buffer.clone()))
    total = torch.stack(buffers).sum(dim=0)
    return [reduced(member, lambda buffer: put(buffer, total)) for member in members]


def reduced(member: Member, sum_in_place: Callable[[torch.Tensor], None]) -> Reduced:
    result = member.sum.reduce(sum_in_place)
    assert isinstance(result, Reduced)
    return result


def put(buffer: torch.Tensor, total: torch.Tensor) -> None:
    buffer.copy_(total)


def test_gradients_1_2_6_of_three_groups_give_exactly_3() -> None:
    members = {group: Member() for group in GRADIENT}
    plan = deal(step=0, quorum_id=1, rounds=ROUNDS, up_to_date=list(members))
    for group, member in members.items():
        for index in plan.rounds_of(group):
            member.run(index, GRADIENT[group])
    for result, member in zip(reduce_all(list(members.values())), members.values(), strict=True):
        assert result.missing_rounds == ()
        member.sum.write_mean()
        assert member.gradients() == [3.0]


@pytest.mark.parametrize("alive", [[0], [0, 1], [1, 2], [0, 1, 2], [0, 1, 2, 3, 4], list(range(8))])
def test_the_divisor_is_the_step_whatever_the_number_of_living_groups(alive: list[int]) -> None:
    """Round i always has the gradient 6 * i, so the mean is 15 by whomever they were run."""
    members = {group: Member() for group in alive}
    for index, owner in enumerate(deal(step=0, quorum_id=1, rounds=ROUNDS, up_to_date=alive).owners):
        members[owner].run(index, 6.0 * index)
    for result, member in zip(reduce_all(list(members.values())), members.values(), strict=True):
        assert result.missing_rounds == ()
        member.sum.write_mean()
        assert member.gradients() == [15.0]


def test_a_joiner_that_adds_zeros_changes_nothing_and_gets_the_mean() -> None:
    worker, joiner = Member(), Member()
    for index in range(ROUNDS):
        worker.run(index, 3.0)
    reduce_all([worker, joiner])
    for member in (worker, joiner):
        member.sum.write_mean()
        assert member.gradients() == [3.0]


@given(counts=st.lists(st.integers(0, 3), min_size=ROUNDS, max_size=ROUNDS))
def test_missing_and_doubled_rounds_show(counts: list[int]) -> None:
    members = [Member() for _ in range(3)]
    for index, count in enumerate(counts):
        for member in members[:count]:
            member.run(index, 1.0)
    for result in reduce_all(members):
        assert result.counts == tuple(counts)
        assert result.missing_rounds == tuple(index for index in range(ROUNDS) if counts[index] != 1)


def test_losses_come_back_by_round() -> None:
    members = [Member(), Member()]
    for index in range(ROUNDS):
        members[index % 2].run(index, 0.0, loss=index + 0.5)
    for result in reduce_all(members):
        assert result.losses == tuple(index + 0.5 for index in range(ROUNDS))
        assert result.finite


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_a_number_that_is_not_finite_is_seen_by_all(bad: float, where: str) -> None:
    members = [Member(), Member()]
    for index in range(ROUNDS):
        members[index % 2].run(index, 1.0)
    members[0].sum.reset()
    for index in range(0, ROUNDS, 2):
        wrong = index == 2
        members[0].run(
            index,
            bad if wrong and where == "gradient" else 1.0,
            loss=bad if wrong and where == "loss" else 0.0,
        )
    for result in reduce_all(members):
        assert not result.finite
        assert result.missing_rounds == ()
        if where == "loss":
            assert [index for index, loss in enumerate(result.losses) if not math.isfinite(loss)] == [2]


def test_a_sum_that_overflows_is_not_finite() -> None:
    members = [Member(), Member()]
    for index in range(ROUNDS):
        members[index % 2].run(index, 3e38)
    assert not any(result.finite for result in reduce_all(members))


def test_reset_forgets_everything_even_what_was_not_finite() -> None:
    member = Member()
    member.run(0, math.nan, loss=math.inf)
    member.sum.reset()
    (result,) = reduce_all([member])
    assert result == Reduced(counts=(0,) * ROUNDS, losses=(0.0,) * ROUNDS, finite=True)


def test_taking_a_round_clears_the_gradients() -> None:
    member = Member()
    member.run(0, 1.0)
    assert all(parameter.grad is None for parameter in member.parameters.values())


def test_a_parameter_that_was_not_used_counts_as_zero() -> None:
    member = Member(rounds=1)
    member.parameters["b.weight"].grad = torch.ones(3, 2)
    member.sum.add_round(0, 0.0)
    reduce_all([member])
    member.sum.write_mean()
    assert member.parameters["b.weight"].grad is not None
    assert member.parameters["b.weight"].grad.tolist() == [[1.0, 1.0]] * 3
    assert float(member.parameters["a.scalar"].grad or 0.0) == 0.0


def test_the_mean_has_the_shape_and_type_of_its_parameter() -> None:
    member = Member(rounds=1)
    member.run(0, 2.0)
    reduce_all([member])
    member.sum.write_mean()
    for parameter in member.parameters.values():
        assert parameter.grad is not None
        assert (parameter.grad.shape, parameter.grad.dtype) == (parameter.shape, parameter.dtype)


def test_each_parameter_gets_its_own_gradient() -> None:
    member = Member(rounds=2)
    wanted = {name: torch.randn(parameter.shape) for name, parameter in member.parameters.items()}
    for index in range(2):
        for name, parameter in member.parameters.items():
            parameter.grad = wanted[name].to(parameter.dtype)
        member.sum.add_round(index, 0.0)
    reduce_all([member])
    member.sum.write_mean()
    for name, parameter in member.parameters.items():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, wanted[name].to(parameter.dtype))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("peer\nsecond line"), "RuntimeError: peer"),
        (TimeoutError(""), "TimeoutError: "),
    ],
)
def test_after_a_failure_the_buffer_is_a_new_and_empty_one(error: Exception, text: str) -> None:
    member = Member()
    member.run(0, 5.0)
    buffers: list[torch.Tensor] = []

    def fail(buffer: torch.Tensor) -> None:
        buffers.append(buffer)
        raise error

    assert member.sum.reduce(fail) == ReduceFailed(error=text)
    buffers[0].fill_(77.0)  # as an abandoned collective may
    result = member.sum.reduce(buffers.append)
    assert buffers[1].data_ptr() != buffers[0].data_ptr()
    assert result == Reduced(counts=(0,) * ROUNDS, losses=(0.0,) * ROUNDS, finite=True)


def test_a_bug_is_not_taken_for_a_failed_peer() -> None:
    def bug(buffer: torch.Tensor) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        Member().sum.reduce(bug)


@settings(max_examples=50)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=20))
def test_mean_loss(losses: list[int]) -> None:
    assert mean_loss(losses) == sum(losses) / len(losses)
