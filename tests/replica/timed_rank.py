"""One rank of two: its gradients with and without timed collectives, and what its clock says. One JSON line.

Rank 1 comes late to its round, by 0.3 s of work of its own.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from replica.round_clock import RoundClock
from replica.sharding import shard

RANK = int(os.environ["RANK"])
WORK_S = 0.3


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))


def gradients(model: nn.Module) -> list[list[float]]:
    model(torch.full((2, 4), 1.0 + RANK)).square().mean().backward()
    found = []
    for parameter in model.parameters():
        assert isinstance(parameter.grad, DTensor)
        found.append(parameter.grad.to_local().flatten().tolist())
    return found


store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=RANK, world_size=2)
mesh = init_device_mesh("cpu", (2,))
plain, timed, clock = make(), make(), RoundClock()
fully_shard(plain[0], mesh=mesh)
fully_shard(plain, mesh=mesh)
shard(timed, [timed[0]], mesh, clock)
expected = gradients(plain)
dist.barrier()
with clock.round():
    time.sleep(WORK_S * RANK)
    found = gradients(timed)
print(json.dumps({"equal": found == expected, "waited_s": clock.times().waited_s}), flush=True)
dist.barrier()
dist.destroy_process_group()
