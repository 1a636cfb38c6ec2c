"""The held-out loss: over samples that are never trained on, the same whatever came before."""

from pathlib import Path

import pytest
import torch

from replica.errors import UserError
from train.config import JobConfig
from train.config_reading import load_config
from train.data import Dataset, open_dataset
from train.evaluation import held_out_loss, training_size
from train.model import Decoder, build_model, loss_of

TINY = Path(__file__).parents[2] / "train" / "configs" / "tiny.toml"


@pytest.fixture(scope="module")
def config() -> JobConfig:
    return load_config(TINY, {"eval.every": "5", "eval.samples": "8", "model.dropout": "0.5"})


@pytest.fixture(scope="module")
def dataset(config: JobConfig) -> Dataset:
    return open_dataset(config)


@pytest.fixture
def model(config: JobConfig) -> Decoder:
    return build_model(config.model, 0)


def loss(model: Decoder, dataset: Dataset, *, batch: int = 2, rank: int = 0, world_size: int = 1) -> float:
    return held_out_loss(model, dataset, held_out=8, batch=batch, rank=rank, world_size=world_size)


def test_held_out_samples_are_the_last_ones_and_are_not_trained_on(
    model: Decoder, dataset: Dataset, config: JobConfig
) -> None:
    size = training_size(dataset, config.eval.held_out)
    assert size == dataset.size - 8
    inputs, targets = dataset.read(range(size, dataset.size))
    model.eval()
    with torch.no_grad():
        expected = float(loss_of(model(inputs), targets))
    assert loss(model, dataset) == pytest.approx(expected, rel=1e-6)


def test_without_evaluation_nothing_is_held_out(dataset: Dataset) -> None:
    assert training_size(dataset, load_config(TINY, {}).eval.held_out) == dataset.size


def test_more_held_out_samples_than_there_are_is_one_sentence(dataset: Dataset) -> None:
    with pytest.raises(UserError, match=f"eval.samples = {dataset.size} leaves nothing to train on"):
        training_size(dataset, dataset.size)


def test_the_ranks_share_the_samples(model: Decoder, dataset: Dataset) -> None:
    shares = [loss(model, dataset, rank=rank, world_size=4) for rank in range(4)]
    assert sum(shares) / 4 == pytest.approx(loss(model, dataset), rel=1e-6)


def test_the_size_of_a_batch_makes_no_difference_but_in_rounding(model: Decoder, dataset: Dataset) -> None:
    assert loss(model, dataset, batch=3) == pytest.approx(loss(model, dataset, batch=8), rel=1e-6)


def test_it_draws_no_random_numbers_and_training_goes_on(model: Decoder, dataset: Dataset) -> None:
    model.train()
    before = torch.get_rng_state()
    first = loss(model, dataset)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert loss(model, dataset) == first
