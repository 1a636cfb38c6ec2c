"""The decoder: shapes, causality, initialisation from a seed alone, and that it can learn."""

import math

import pytest
import torch
from torch.nn import functional

from replica.rng import seeded
from train.config import ModelSection
from train.model import Decoder, build_model, loss_of, rope_table, rotated

SMALL = ModelSection(dim=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=40, dropout=0.1)


def tokens_of(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, SMALL.vocab, shape, generator=torch.Generator().manual_seed(seed))


def test_logits_have_a_score_per_token_of_the_vocabulary() -> None:
    assert build_model(SMALL, 0)(tokens_of(3, 7)).shape == (3, 7, 40)


def test_the_default_has_about_a_million_parameters() -> None:
    model = build_model(ModelSection(), 0)
    assert 0.9e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.1e6
    assert len(model.blocks) == ModelSection().layers


def test_nothing_that_training_changes_is_a_buffer() -> None:
    model = build_model(SMALL, 0)
    assert list(model.buffers()) == []
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]


def test_weights_depend_on_the_seed_alone() -> None:
    torch.rand(3)
    first = build_model(SMALL, 5).state_dict()
    torch.manual_seed(99)
    second = build_model(SMALL, 5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = build_model(SMALL, 6).state_dict()
    assert not any(torch.equal(first[name], other[name]) for name in first if first[name].ndim == 2)


def test_building_leaves_the_global_generator_as_it_was() -> None:
    state = torch.random.get_rng_state()
    build_model(SMALL, 5)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_every_weight_is_initialised_and_trainable() -> None:
    for name, parameter in build_model(SMALL, 0).named_parameters():
        assert parameter.requires_grad, name
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            assert 0.005 < float(parameter.detach().std()) < 0.025, name


def test_a_fresh_model_knows_nothing() -> None:
    inputs, targets = tokens_of(8, 16), tokens_of(8, 16, seed=1)
    loss = loss_of(build_model(SMALL, 0)(inputs), targets)
    assert float(loss.detach()) == pytest.approx(math.log(SMALL.vocab), abs=0.05)


def test_a_token_never_sees_the_future() -> None:
    model = build_model(SMALL, 0).eval()
    tokens = tokens_of(1, 12)
    later = tokens.clone()
    later[0, 8] = (later[0, 8] + 1) % SMALL.vocab
    before, after = model(tokens), model(later)
    assert torch.allclose(before[:, :8], after[:, :8], atol=1e-6)
    assert not torch.allclose(before[:, 8:], after[:, 8:], atol=1e-6)


def test_order_matters() -> None:
    model = build_model(SMALL, 0).eval()
    with torch.no_grad():
        forward = model(torch.tensor([[1, 2, 3]]))[0, -1]
        swapped = model(torch.tensor([[2, 1, 3]]))[0, -1]
    assert not torch.allclose(forward, swapped, atol=1e-6)


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    rope = rope_table(16, 8, 10000.0, torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(2, 8, generator=generator)
    queries = rotated(query.expand(1, 1, 16, 8), rope)[0, 0]
    keys = rotated(key.expand(1, 1, 16, 8), rope)[0, 0]
    assert torch.allclose(queries.norm(dim=-1), query.norm().expand(16), atol=1e-5)
    products = queries @ keys.T
    assert torch.allclose(products[5, 2], products[12, 9], atol=1e-4)
    assert not torch.allclose(products[5, 2], products[5, 3], atol=1e-4)


def test_grouped_heads_share_keys_and_values() -> None:
    model = build_model(SMALL, 0)
    assert model.get_parameter("blocks.0.attention.key.weight").shape == (16, 32)
    assert model.get_parameter("blocks.0.attention.query.weight").shape == (32, 32)


def test_dropout_acts_in_training_only() -> None:
    model, tokens = build_model(SMALL, 0), tokens_of(2, 8)
    with torch.no_grad():
        with seeded(0, 0, 0):
            first = model(tokens)
        with seeded(0, 0, 0):
            again = model(tokens)
        with seeded(0, 0, 1):
            other = model(tokens)
        model.eval()
        assert torch.equal(model(tokens), model(tokens))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_loss_is_float32_whatever_the_logits_are() -> None:
    logits, targets = torch.randn(2, 3, 5, dtype=torch.bfloat16), torch.tensor([[0, 1, 2], [3, 4, 0]])
    loss = loss_of(logits, targets)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, functional.cross_entropy(logits.float().view(6, 5), targets.view(6)))


def test_it_learns_a_repeating_pattern() -> None:
    model = build_model(SMALL, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    row = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6] * 3])
    for step in range(60):
        with seeded(0, step, 0):
            loss = loss_of(model(row[:, :-1]), row[:, 1:])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    assert float(loss.detach()) < 0.2


def test_gradients_reach_every_parameter() -> None:
    model: Decoder = build_model(SMALL, 0)
    torch.autograd.backward(loss_of(model(tokens_of(2, 8)), tokens_of(2, 8, seed=1)))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name
