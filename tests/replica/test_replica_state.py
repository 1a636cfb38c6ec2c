"""The state: one digest for any number of ranks, brought into being unseen, adopted whole."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from children import children, hear
from sharded_state_rank import Uneven, fill, tensors
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from replica.errors import UserError
from replica.state import TrainingState, entry_of, materialise

Optimizer = torch.optim.Optimizer
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw-tensor-rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "adamw-amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adam-with-decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "sgd-momentum-decay": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "rmsprop-decay": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.5),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return Uneven()


def train(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> list[torch.Tensor]:
    """Take some steps; returns the parameters."""
    for step in range(steps):
        inputs = torch.arange(10.0).reshape(2, 5).add(step).div(10)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def separate_digest(named: dict[str, torch.Tensor]) -> str:
    """The digest of full tensors, written down a second time."""
    document = b"".join(
        f"{name}|{tensor.dtype}|{tuple(tensor.shape)}\n".encode() + tensor.contiguous().numpy().tobytes()
        for name, tensor in sorted(named.items())
    )
    return xxhash.xxh3_128_hexdigest(document)


def made(kind: str = "adamw") -> tuple[nn.Module, Optimizer, TrainingState]:
    model = make_model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    return model, optimizer, TrainingState(model, optimizer)


@pytest.fixture(scope="module")
def rank_results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What every rank of a group of 2 and of one of 3 said, by number of ranks."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    with children() as group:
        ranks = {
            (size, rank): group.start(
                "sharded_state_rank.py", folder, env={"RANK": str(rank), "WORLD_SIZE": str(size)}
            )
            for size in (2, 3)
            for rank in range(size)
        }
        said = {key: json.loads(hear(child)) for key, child in ranks.items()}
    return {size: [said[size, rank] for rank in range(size)] for size in (2, 3)}


@pytest.mark.parametrize("world_size", [2, 3])
def test_sharded_over_ranks_the_digest_is_that_of_the_full_tensors(
    rank_results: dict[int, list[dict[str, Any]]], world_size: int
) -> None:
    model, optimizer, state = made()
    named = tensors(model, optimizer)
    with torch.no_grad():
        fill(named, 0, 1)
    assert state.digest(1) == separate_digest(named)
    results = rank_results[world_size]
    assert results[0]["digest"] == separate_digest(named)
    assert [each["digest"] for each in results[1:]] == [""] * (world_size - 1)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_copy_of_a_sharded_state_is_adopted_into_the_live_model(
    rank_results: dict[int, list[dict[str, Any]]], world_size: int
) -> None:
    results = rank_results[world_size]
    assert results[0]["digests_differ"]
    assert results[0]["digest_after_adopting"] == results[0]["digest"]
    for each in results:
        assert each["adopted_into_the_model"]
        assert each["bytes"] == each["bytes_of_tensors"] > 0


def test_the_digest_of_a_trained_state_is_that_of_its_full_tensors() -> None:
    model, optimizer, state = made()
    train(model, optimizer)
    assert state.digest(1) == separate_digest(tensors(model, optimizer))


def flip_lowest_bit(tensor: torch.Tensor) -> None:
    tensor.view(torch.uint8).reshape(-1)[0] ^= 1


@pytest.mark.parametrize("name", sorted(tensors(*made()[:2])))
def test_one_changed_bit_anywhere_changes_the_digest(name: str) -> None:
    model, optimizer, state = made()
    before = state.digest(1)
    tensor = tensors(model, optimizer)[name]
    flip_lowest_bit(tensor.reshape(1) if tensor.dim() == 0 else tensor)
    assert state.digest(1) != before


def digest_of(name: str, value: torch.Tensor) -> str:
    model = nn.Module()
    model.register_parameter("p", nn.Parameter(torch.zeros(1)))
    model.register_buffer(name, value)
    return TrainingState(model, torch.optim.SGD(model.parameters())).digest(1)


def test_name_dtype_and_shape_are_part_of_the_digest() -> None:
    value = torch.zeros(2, 3, dtype=torch.int32)
    others = [
        digest_of("b", value),
        digest_of("a", value.to(torch.float32)),
        digest_of("a", value.reshape(3, 2)),
        digest_of("a", value.reshape(6)),
    ]
    assert len({digest_of("a", value), *others}) == 5


def test_a_transposed_buffer_is_digested_in_row_major_order() -> None:
    value = torch.arange(6.0).reshape(2, 3)
    assert digest_of("a", value.T) == digest_of("a", value.T.contiguous())
    assert digest_of("a", value.T) != digest_of("a", value.reshape(3, 2))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bringing_the_optimizer_state_into_being_leaves_no_trace(kind: str) -> None:
    fresh_model, model = make_model(), make_model()
    fresh, optimizer = OPTIMIZERS[kind](fresh_model.parameters()), OPTIMIZERS[kind](model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    materialise(optimizer)
    for one, other in zip(fresh_model.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert other.grad is None
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))
    assert [group["weight_decay"] for group in optimizer.param_groups if "weight_decay" in group] == [
        group["weight_decay"] for group in fresh.param_groups if "weight_decay" in group
    ]
    for one, other in zip(train(fresh_model, fresh), train(model, optimizer), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_tensors_exist_before_the_first_step(kind: str) -> None:
    model, optimizer, state = made(kind)
    before = set(state.tensors())
    train(model, optimizer)
    assert before == set(tensors(model, optimizer))


def test_an_optimizer_that_has_taken_steps_is_left_alone() -> None:
    model = make_model()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer)
    before = separate_digest(tensors(model, optimizer))
    materialise(optimizer)
    assert separate_digest(tensors(model, optimizer)) == before


def test_a_frozen_parameter_stays_as_it_is() -> None:
    model = make_model()
    frozen = model.get_parameter("rows")
    frozen.requires_grad_(False)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    state = TrainingState(model, optimizer)
    before = frozen.detach().clone()
    train(model, optimizer)
    assert torch.equal(frozen, before)
    assert "parameter.rows" in state.tensors()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_joiner_without_a_step_adopts_and_trains_on_like_the_donor(kind: str) -> None:
    donor_model, donor_optimizer, donor = made(kind)
    train(donor_model, donor_optimizer)
    joiner_model, joiner_optimizer, joiner = made(kind)
    with torch.no_grad():
        joiner_model.get_parameter("one").add_(5)
    joiner.adopt(copies(donor))
    assert joiner.digest(1) == donor.digest(1)
    assert all(
        torch.equal(one, other)
        for one, other in zip(
            train(donor_model, donor_optimizer), train(joiner_model, joiner_optimizer), strict=True
        )
    )


def test_its_tensors_are_those_that_are_trained() -> None:
    model, optimizer, state = made()
    given = state.tensors()
    train(model, optimizer)
    assert separate_digest(given) == state.digest(1)


def test_adopting_its_own_tensors_changes_nothing() -> None:
    model, optimizer, state = made()
    train(model, optimizer)
    digest = state.digest(1)
    state.adopt(state.tensors())
    assert state.digest(1) == digest


def copies(state: TrainingState) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.tensors().items()}


def test_adopting_copies_too() -> None:
    _, _, state = made()
    copied = copies(state)
    state.adopt(copied)
    digest = state.digest(1)
    for tensor in copied.values():
        tensor.zero_()
    assert state.digest(1) == digest


def test_optimizer_state_that_is_no_tensor_is_refused_by_name() -> None:
    model = make_model()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer)
    optimizer.state[model.get_parameter("rows")]["history"] = [1, 2]
    with pytest.raises(UserError, match="'history' of rows is a list"):
        TrainingState(model, optimizer)


def test_another_sharding_than_that_of_dimension_0_is_refused_by_name(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        replicated = DTensor.from_local(torch.zeros(2), mesh, [Replicate()], run_check=False)
        with pytest.raises(UserError, match="head is sharded as"):
            entry_of("head", replicated)
    finally:
        torch.distributed.destroy_process_group()
