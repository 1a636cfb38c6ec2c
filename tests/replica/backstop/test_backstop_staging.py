"""The copy that a save is written from."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from replica.backstop.staging import Staging
from replica.mesh import Ranks
from replica.state import TrainingState


def sharded(ranks: Ranks) -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    fully_shard(model, mesh=ranks.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, TrainingState(model, optimizer)


def plain(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    parts = {name: t.to_local() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    return {name: part.clone() for name, part in parts.items()}


def test_a_copy_keeps_the_values_of_its_boundary_and_can_be_adopted(ranks: Ranks) -> None:
    model, optimizer, state = sharded(ranks)
    staging = Staging(state, init_device_mesh("cpu", (1,)))
    staging.copy()
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    digest = state.digest(1)
    model(torch.ones(4, 5)).sum().backward()
    optimizer.step()
    assert state.digest(1) != digest
    copied = plain(staging.tensors())
    assert copied.keys() == before.keys()
    assert all(torch.equal(copied[name], before[name]) for name in before)
    staging.adopt()
    assert state.digest(1) == digest


def test_sharded_tensors_are_whole_ones_over_the_group(ranks: Ranks) -> None:
    _, _, state = sharded(ranks)
    staging = Staging(state, init_device_mesh("cpu", (1,)))
    staging.copy()
    tensors = staging.tensors()
    weight = tensors["parameter.0.weight"]
    assert isinstance(weight, DTensor)
    assert tuple(weight.shape) == (3, 5)
    assert not isinstance(tensors["buffer.1.running_mean"], DTensor)


def test_the_memory_of_the_copy_is_made_once(ranks: Ranks) -> None:
    _, _, state = sharded(ranks)
    staging = Staging(state, init_device_mesh("cpu", (1,)))
    staging.copy()
    places = {name: plain_of.data_ptr() for name, plain_of in local(staging).items()}
    staging.copy()
    assert {name: plain_of.data_ptr() for name, plain_of in local(staging).items()} == places


def local(staging: Staging) -> dict[str, torch.Tensor]:
    return {n: t.to_local() if isinstance(t, DTensor) else t for n, t in staging.tensors().items()}
