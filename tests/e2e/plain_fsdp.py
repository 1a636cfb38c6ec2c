"""Plain FSDP2 training on the micro-batches of a job, as one torchrun job without any of the machinery."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from replica.position import sample_indices
from replica.rng import seeded
from replica.state import TrainingState
from train.config_reading import load_config
from train.data import open_dataset
from train.model import build_model, loss_of
from train.optimizer import build_optimizer, learning_rate


def main(config_file: str, steps: int, out: str) -> None:
    """Train `steps` steps; write the digest of the state after each to a file, one per line."""
    config = load_config(Path(config_file), {"job.steps": str(steps)})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world_size,))
    dataset, model = open_dataset(config), build_model(config.model, config.job.seed)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = build_optimizer(model, config.optimizer)
    state = TrainingState(model, optimizer)
    rounds = config.job.micro_batches // world_size
    for step in range(steps):
        for number in range(rounds):
            micro_batch = number * world_size + rank
            indices = sample_indices(
                seed=config.job.seed,
                step=step,
                micro_batch=micro_batch,
                micro_batches=config.job.micro_batches,
                samples_per_micro_batch=config.data.samples_per_micro_batch,
                dataset_size=dataset.size,
            )
            inputs, targets = dataset.read(indices)
            with seeded(config.job.seed, step, micro_batch):
                loss_of(model(inputs), targets).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= rounds
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        digest = state.digest(world_size)
        if rank == 0:
            with open(out, "a") as file:
                file.write(json.dumps(digest) + "\n")
    dist.barrier()
    # As trainers do: gloo's threads and the interpreter's own shutdown get in each other's way.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
