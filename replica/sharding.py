"""Shards a model over the ranks of a group with FSDP2, and times how long its collectives wait."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from replica.round_clock import RoundClock


def shard(model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh, clock: RoundClock) -> None:
    """Shard each of `blocks`, then the rest of the model, over a 1-D mesh, in place.

    The clock is told of every all-gather and reduce-scatter.
    """
    for module in (*blocks, model):
        sharded = fully_shard(module, mesh=mesh)
        if mesh.size() > 1:
            sharded.set_custom_all_gather(TimedAllGather(clock))
            sharded.set_custom_reduce_scatter(TimedReduceScatter(clock))


class TimedAllGather(DefaultAllGather):
    """FSDP2's own all-gather, on a clock."""

    def __init__(self, clock: RoundClock) -> None:
        super().__init__()
        self._clock = clock

    def __call__(self, output_tensor: torch.Tensor, *args: Any, **settings: Any) -> dist.Work | None:
        """See FSDP2's `AllGather`."""
        with self._clock.collective(output_tensor.device):
            return super().__call__(output_tensor, *args, **settings)


class TimedReduceScatter(DefaultReduceScatter):
    """FSDP2's own reduce-scatter, on a clock."""

    def __init__(self, clock: RoundClock) -> None:
        super().__init__()
        self._clock = clock

    def __call__(self, output_tensor: torch.Tensor, *args: Any, **settings: Any) -> dist.Work:
        """See FSDP2's `ReduceScatter`."""
        with self._clock.collective(output_tensor.device):
            return super().__call__(output_tensor, *args, **settings)
