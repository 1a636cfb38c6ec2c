"""The learning rate as a function of the step, and what AdamW is given."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.config import JobConfig, JobSection, OptimizerSection, Schedule
from train.model import build_model
from train.optimizer import build_optimizer, learning_rate


def config_of(*, steps: int = 100, warmup_steps: int = 10, schedule: Schedule = Schedule.COSINE) -> JobConfig:
    optimizer = OptimizerSection(lr=1.0, min_lr_ratio=0.1, warmup_steps=warmup_steps, schedule=schedule)
    return JobConfig(job=JobSection(steps=steps), optimizer=optimizer)


def test_the_warm_up_is_a_line_from_above_zero_to_the_peak() -> None:
    rates = [learning_rate(config_of(), step) for step in range(11)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0])


def test_the_cosine_ends_at_the_last_step_and_stays_there() -> None:
    config = config_of(steps=111, warmup_steps=10)
    assert learning_rate(config, 60) == pytest.approx(0.55)
    assert learning_rate(config, 110) == pytest.approx(0.1)
    assert learning_rate(config, 5000) == pytest.approx(0.1)


def test_the_constant_schedule_does_not_know_the_number_of_steps() -> None:
    short, long = (config_of(steps=steps, schedule=Schedule.CONSTANT) for steps in (5, 500))
    assert [learning_rate(short, step) for step in range(300)] == [
        learning_rate(long, step) for step in range(300)
    ]
    assert learning_rate(long, 299) == 1.0


@given(
    steps=st.integers(1, 300),
    warmup_steps=st.integers(0, 400),
    schedule=st.sampled_from(Schedule),
    step=st.integers(0, 1000),
)
def test_it_is_positive_at_most_the_peak_and_never_rises_after_the_warm_up(
    steps: int, warmup_steps: int, schedule: Schedule, step: int
) -> None:
    config = config_of(steps=steps, warmup_steps=warmup_steps, schedule=schedule)
    rate, following = learning_rate(config, step), learning_rate(config, step + 1)
    assert 0 < rate <= 1
    if step >= warmup_steps:
        assert 0.1 <= following <= rate


def test_weight_decay_applies_to_matrices_only() -> None:
    config = JobConfig()
    model = build_model(config.model, 0)
    decayed, plain = build_optimizer(model, config.optimizer).param_groups
    assert decayed["weight_decay"] == 0.1
    assert plain["weight_decay"] == 0.0
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in plain["params"]} == {1}
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


def test_a_model_of_matrices_alone_gets_one_group() -> None:
    optimizer = build_optimizer(torch.nn.Linear(2, 2, bias=False), OptimizerSection(lr=0.5, beta1=0.8))
    (group,) = optimizer.param_groups
    assert group["lr"] == 0.5
    assert group["betas"] == (0.8, 0.95)
