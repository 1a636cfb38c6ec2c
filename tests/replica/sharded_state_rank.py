"""One rank of a group whose state is digested: run by the tests of the state, prints one JSON line."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from replica.state import TrainingState


class Uneven(nn.Module):
    """First dimensions of 1, 3 and 7: no number of ranks divides them all."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 7)
        self.rows = nn.Parameter(torch.ones(3, 7))
        self.one = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.inner(inputs) @ self.rows.T) * self.one


def full_value(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor that the state holds under `name`, the same for every number of ranks."""
    generator = torch.Generator().manual_seed(len(name) * 1000 + sum(name.encode()))
    return torch.randint(1, 100, tuple(tensor.shape), generator=generator).to(tensor.dtype)


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All tensors of the state by name, found without the code under test."""
    found = {f"parameter.{name}": parameter.data for name, parameter in model.named_parameters()}
    found |= {f"buffer.{name}": buffer for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        found |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return found


def fill(named: dict[str, torch.Tensor], rank: int, world_size: int) -> None:
    for name, tensor in named.items():
        whole = full_value(name, tensor)
        if not isinstance(tensor, DTensor):
            tensor.copy_(whole)
            continue
        pieces = torch.chunk(whole, world_size, dim=0)
        if rank < len(pieces):
            tensor.to_local().copy_(pieces[rank])


def is_filled(named: dict[str, torch.Tensor]) -> bool:
    """Whether every tensor is what `fill` made it. A collective."""
    wholes = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in named.items()
    }
    return all(torch.equal(whole, full_value(name, whole)) for name, whole in wholes.items())


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(sys.argv[1]) / f"store-{world_size}"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    model = Uneven()
    mesh = init_device_mesh("cpu", (world_size,))
    fully_shard(model.inner, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = TrainingState(model, optimizer)
    before = state.digest(world_size)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    after_step = state.digest(world_size)
    with torch.no_grad():
        fill(tensors(model, optimizer), rank, world_size)
    filled = state.digest(world_size)
    copied = {name: tensor.clone() for name, tensor in state.tensors().items()}
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    state.adopt(copied)
    result = {
        "digest": filled,
        "digests_differ": len({before, after_step, filled}) == 3,
        "adopted_into_the_model": is_filled(tensors(model, optimizer)),
        "digest_after_adopting": state.digest(world_size),
        "bytes": state.bytes,
        "bytes_of_tensors": sum(tensor.nbytes for tensor in copied.values()),
    }
    dist.destroy_process_group()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
