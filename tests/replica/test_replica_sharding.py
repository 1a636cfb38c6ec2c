"""Sharding: two ranks get the bits that FSDP2 gives, and the one that comes early is seen to wait."""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from children import children, hear
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from replica.round_clock import RoundClock
from replica.sharding import shard


def test_a_rank_alone_has_nobody_to_wait_for() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, clock = nn.Linear(2, 2), RoundClock()
        shard(model, (), init_device_mesh("cpu", (1,)), clock)
        with clock.round():
            model(torch.ones(1, 2)).sum().backward()
        assert clock.times().waited_s == 0.0
        assert clock.times().rounds_s > 0.0
    finally:
        dist.destroy_process_group()


def test_two_ranks_get_the_bits_of_fsdp2_and_the_early_one_waits(tmp_path: Path) -> None:
    with children() as group:
        ranks = [
            group.start("timed_rank.py", str(tmp_path / "store"), env={"RANK": rank}) for rank in ("0", "1")
        ]
        early, late = (json.loads(hear(rank)) for rank in ranks)
    assert early["equal"]
    assert late["equal"]
    assert early["waited_s"] > 0.2
    assert late["waited_s"] < early["waited_s"]
