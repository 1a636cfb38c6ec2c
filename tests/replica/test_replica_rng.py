"""Random numbers of a micro-batch: reproducible, independent of earlier draws, restored after."""

import random
from itertools import product

import numpy as np
import pytest
import torch

from replica.rng import derive_seed, micro_batch_seed, seeded


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def draw_and_fail() -> None:
    draw()
    raise RuntimeError("body")


def test_the_same_micro_batch_draws_the_same_numbers_whatever_was_drawn_before() -> None:
    with seeded(1, 2, 3):
        first = draw()
    random.random()
    np.random.random(7)
    torch.rand(5)
    with seeded(1, 2, 3):
        assert draw() == first


@pytest.mark.parametrize("other", [(0, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3)])
def test_other_micro_batches_draw_other_numbers(other: tuple[int, int, int]) -> None:
    with seeded(1, 2, 3):
        first = draw()
    with seeded(*other):
        second = draw()
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_the_outer_sequence_goes_on_as_if_nothing_had_happened() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    expected = [draw(), draw()]
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    before = draw()
    with seeded(1, 2, 3):
        draw()
    assert [before, draw()] == expected


def test_states_are_restored_when_the_body_raises() -> None:
    state = torch.random.get_rng_state()
    python_state = random.getstate()
    with pytest.raises(RuntimeError, match="body"), seeded(1, 2, 3):
        draw_and_fail()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert random.getstate() == python_state


def test_dropout_is_the_same_in_each_computation_of_a_micro_batch() -> None:
    dropout = torch.nn.Dropout(0.5)
    results = []
    for earlier_draws in (0, 3):
        torch.rand(earlier_draws)
        with seeded(7, 8, 9):
            results.append(dropout(torch.ones(100)))
    assert torch.equal(*results)
    assert 0 < int((results[0] == 0).sum()) < 100


def test_seeds_are_64_bits_and_differ() -> None:
    seeds = {micro_batch_seed(*numbers) for numbers in product(range(10), repeat=3)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert max(seeds) > 2**63


def test_purposes_do_not_share_seeds() -> None:
    assert derive_seed("weights", 1) != derive_seed("micro-batch", 1)
    assert derive_seed("a", 1, 2) != derive_seed("a", 2, 1)


# Part of every trajectory: these values must never change.
def test_golden_values() -> None:
    assert micro_batch_seed(0, 0, 0) == 4672525639494792842
    assert micro_batch_seed(1, 2, 3) == 13112109279230704152
    assert derive_seed("weights", 0) == 7600213122562610268


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_is_seeded_and_restored() -> None:
    state = torch.cuda.get_rng_state()
    with seeded(1, 2, 3):
        first = torch.rand(4, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.rand(9, device="cuda")
    with seeded(1, 2, 3):
        assert torch.equal(torch.rand(4, device="cuda"), first)
