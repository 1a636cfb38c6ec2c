"""The update of a committed step: the mean, clipped over the whole model, at the rate of its number."""

import math

import pytest
import torch
from torch import nn

from replica.alone import NoPeers
from replica.averaging import FloatGradientSum, Reduced
from replica.updater import Updater

ROUNDS = 4


class Job:
    """Two parameters that start at zero, plain SGD, and constant gradients in every round."""

    def __init__(self, *, clip_norm: float | None = None, schedule: bool = False) -> None:
        self.parameters = {"a": nn.Parameter(torch.zeros(3)), "b": nn.Parameter(torch.zeros(1))}
        self.sum = FloatGradientSum(self.parameters, ROUNDS)
        self.updater = Updater(
            parameters=self.parameters,
            optimizer=torch.optim.SGD(self.parameters.values(), lr=1.0),
            gradients=self.sum,
            learning_rate=(lambda step: 0.5**step) if schedule else None,
            clip_norm=clip_norm,
        )

    def step(self, number: int, gradient: float = 1.0) -> float:
        for index in range(ROUNDS):
            for parameter in self.parameters.values():
                parameter.grad = torch.full_like(parameter, gradient)
            self.sum.add_round(index, 0.0)
        assert isinstance(self.sum.reduce(NoPeers()), Reduced)
        return self.updater.apply(number)

    def values(self) -> list[float]:
        return [value for parameter in self.parameters.values() for value in parameter.tolist()]


def test_the_mean_gradient_is_applied_and_its_norm_told() -> None:
    job = Job()
    assert job.step(0, gradient=3.0) == 1.0
    assert job.values() == [-3.0] * 4
    assert job.updater.grad_norm == 6.0


def test_the_learning_rate_is_that_of_the_step_whatever_came_before() -> None:
    job = Job(schedule=True)
    assert [job.step(number) for number in (3, 3, 0)] == [0.125, 0.125, 1.0]
    assert job.values() == [-1.25] * 4


def test_clipping_is_over_the_whole_model_and_the_norm_is_that_before_it() -> None:
    job = Job(clip_norm=1.0)
    job.step(0, gradient=3.0)
    assert job.updater.grad_norm == 6.0
    assert math.hypot(*job.values()) == pytest.approx(1.0, rel=1e-5)


def test_a_small_gradient_is_not_clipped() -> None:
    job = Job(clip_norm=100.0)
    job.step(0, gradient=3.0)
    assert job.values() == [-3.0] * 4


def test_afterwards_sum_and_gradients_are_empty() -> None:
    job = Job()
    job.step(0)
    assert all(parameter.grad is None for parameter in job.parameters.values())
    result = job.sum.reduce(NoPeers())
    assert isinstance(result, Reduced)
    assert result.counts == (0,) * ROUNDS
    before = job.values()
    job.updater.apply(1)
    assert job.values() == before
