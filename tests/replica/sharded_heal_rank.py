"""One rank of three groups at once, two with a state and one that joins: prints one JSON line.

Each group is two ranks that hold an FSDP2 model in shards; a rank plays the same part in all three, so
that its joiner reads from its donors over real sockets.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from lighthouse.access import Access
from replica.bridge.transport import HealTransport
from replica.rounds import Peer
from replica.state import TrainingState
from replica.transfer import Served

STEP = 3
TIMEOUT = timedelta(seconds=30)


class EveryKind(nn.Module):
    """First dimensions of 1 and 3, tied weights, half precision, and buffers that nobody shards."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 8)
        self.narrow = nn.Linear(8, 5, dtype=torch.bfloat16)
        self.back = nn.Linear(5, 8)
        self.head = nn.Linear(8, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.one = nn.Parameter(torch.ones(1))
        self.register_buffer("scale", torch.rand(7).to(torch.float8_e4m3fn))
        self.register_buffer("nothing", torch.zeros(0, 4))
        self.register_buffer("mask", torch.rand(3) > 0.5)
        self.register_buffer("count", torch.tensor(5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.narrow(self.embedding(tokens).bfloat16()).float()
        return self.head(self.back(hidden) * self.one)


class Group:
    """One group's share of this rank: a model of its own, sharded, and its optimizer."""

    def __init__(self, seed: int, mesh: DeviceMesh, *, momentum: bool) -> None:
        torch.manual_seed(seed)
        self.model = EveryKind()
        for part in (self.model.narrow, self.model):  # half precision is a unit of its own
            fully_shard(part, mesh=mesh)
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, lr=0.1) if momentum else torch.optim.SGD(parameters, lr=0.1)
        )
        self.state = TrainingState(self.model, self.optimizer)

    def train(self, steps: int) -> None:
        for step in range(steps):
            self.model(torch.tensor([0, 1, 2]).roll(step)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


@contextmanager
def transports(groups: Mapping[int, Group], *, fresh: bool) -> Iterator[list[HealTransport]]:
    """One for each group; all of them know each other, the last has step 0."""
    peers: list[Peer] = []
    served: list[Served] = []
    made = [
        HealTransport(
            timeout_s=TIMEOUT.total_seconds(),
            advertise_addr="127.0.0.1",
            own=group.state.tensors,
            fresh=lambda: fresh,
            on_served=served.append,
            access=Access(token=b"the secret of this job"),
            peers=lambda: peers,
            group=number,
        )
        for number, group in groups.items()
    ]
    joiner = max(groups)
    peers += [
        Peer(group=number, step=0 if number == joiner else STEP, address=transport.address)
        for number, transport in zip(groups, made, strict=True)
    ]
    try:
        yield made
    finally:
        for transport in made:
            transport.shutdown()


def heal(mesh: DeviceMesh, world_size: int, *, fresh: bool, momentum: bool) -> dict[str, object]:
    """Two donors train alike, the third group takes their state; all train on. Digests are rank 0's."""
    groups = {0: Group(1, mesh, momentum=momentum), 1: Group(1, mesh, momentum=momentum)}
    for donor in groups.values():
        donor.train(STEP)
    groups[2] = joiner = Group(2, mesh, momentum=momentum)
    before = joiner.state.digest(world_size)
    with transports(groups, fresh=fresh) as (first, second, third):
        first.send_checkpoint([2], STEP, {}, TIMEOUT)
        second.stage_for_joiners(STEP)
        expected = groups[0].state.digest(world_size)
        groups[1].train(1)  # the donors train on
        received = third.recv_checkpoint(0, first.metadata(), STEP, TIMEOUT)["user"]["default"]
        joiner.state.adopt(received)
        outcome = third.heal
    adopted = joiner.state.digest(world_size)
    joiner.train(1)
    assert outcome.received is not None
    return {
        "differed": before != expected,
        "expected": expected,
        "adopted": adopted,
        "one_step_on": joiner.state.digest(world_size),
        "donor_one_step_on": groups[1].state.digest(world_size),
        "incidents": len(outcome.incidents),
        "bytes": outcome.received.bytes,
        "shard_bytes": joiner.state.bytes,
        "empty_shards": sum(tensor.numel() == 0 for tensor in received.values()),
        "dtypes": sorted({str(tensor.dtype) for tensor in received.values()}),
        "scalars": sum(tensor.dim() == 0 for tensor in received.values()),
        "tied": joiner.model.head.weight is joiner.model.embedding.weight,
    }


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(sys.argv[1]) / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    mesh = init_device_mesh("cpu", (world_size,))
    results = {
        "fresh": heal(mesh, world_size, fresh=True, momentum=True),
        "second buffer": heal(mesh, world_size, fresh=False, momentum=True),
        "without optimizer state": heal(mesh, world_size, fresh=True, momentum=False),
    }
    dist.destroy_process_group()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
