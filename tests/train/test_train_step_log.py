"""The lines on how training goes: the first and the last step, and few enough between for a log file."""

import logging
from collections.abc import Sequence

import pytest

from train.step_log import LINE_EVERY_S, StepLog


def lines(
    caplog: pytest.LogCaptureFixture, steps: int, commits: Sequence[tuple[float, int, tuple[int, ...]]]
) -> list[str]:
    """What is said of commits, each with the time in seconds, the step, and the groups."""
    now_s = [0.0]
    log = StepLog(steps=steps, tokens_per_step=100, clock=lambda: now_s[0])
    with caplog.at_level(logging.INFO, logger="headway"):
        for at_s, step, groups in commits:
            now_s[0] = at_s
            log.committed(step, 10.0 / step, groups)
    return [record.getMessage() for record in caplog.records]


def test_the_first_and_the_last_step_have_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 4, [(step / 2, step, (0, 2)) for step in range(1, 5)]) == [
        "step 1 of 4: loss 10.0000, 2 groups",
        "step 4 of 4: loss 2.5000, 200 tokens/s, 2 groups",
    ]


def test_between_them_there_is_one_in_ten_seconds_at_most(caplog: pytest.LogCaptureFixture) -> None:
    said = lines(caplog, 10_000, [(step / 10, step, (0,)) for step in range(1, 1000)])
    assert len(said) == 1 + int(999 / 10 / LINE_EVERY_S)
    assert said[1] == "step 101 of 10000: loss 0.0990, 1000 tokens/s, 1 group"


def test_steps_that_this_group_missed_count_for_the_rate(caplog: pytest.LogCaptureFixture) -> None:
    said = lines(caplog, 100, [(0.0, 5, (0, 1)), (20.0, 45, (0, 1))])
    assert said[1] == "step 45 of 100: loss 0.2222, 200 tokens/s, 2 groups"
