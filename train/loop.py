"""The training loop: read it top to bottom and you know the trainer.

    torchrun --nproc-per-node 2 -m train train/configs/default.toml \\
        --replica-group-id 0 --lighthouse-addr HOST:29510

Each process is one rank of one replica group. The loop is the same with one group and no failures
as with many that die: a group that was started again heals inside `attempts()`.
"""

import logging

from torch import nn

from replica.group import ReplicaGroup
from train.config import JobConfig
from train.data import Dataset
from train.evaluation import held_out_loss, training_size
from train.model import build_model, loss_of
from train.optimizer import build_optimizer, learning_rate
from train.step_log import StepLog

LOG = logging.getLogger("headway")


def train(config: JobConfig, group: ReplicaGroup, dataset: Dataset) -> None:
    """Train until the job's last step is committed. Blocks; runs on the main thread of each rank."""
    device = group.mesh.device_type
    model = build_model(config.model, config.job.seed).to(device)
    group.shard(model, blocks=model.blocks)
    optimizer = build_optimizer(model, config.optimizer)
    group.register(
        model,
        optimizer,
        learning_rate=lambda step: learning_rate(config, step),
        clip_norm=config.optimizer.clip_norm,
    )
    model.train()
    size = training_size(dataset, config.eval.held_out)
    log = StepLog(steps=config.job.steps, tokens_per_step=config.tokens_per_step)
    for attempt in group.attempts():
        for micro_batch in attempt.micro_batches():
            indices = micro_batch.samples(config.data.samples_per_micro_batch, size)
            inputs, targets = dataset.read(indices)
            loss = loss_of(model(inputs.to(device)), targets.to(device))
            attempt.backward(loss, inputs)
        if attempt.commit():
            log.committed(group.step, attempt.loss, attempt.groups)
            if config.eval.every and group.step % config.eval.every == 0:
                evaluate(config, group, model, dataset)
    tokens = group.step * config.tokens_per_step
    LOG.info(
        "group %s ends with the state of step %s, after %s tokens", group.config.group, group.step, tokens
    )


def evaluate(config: JobConfig, group: ReplicaGroup, model: nn.Module, dataset: Dataset) -> None:
    """Write down the loss on held-out samples. Every group that commits the step finds the same."""
    loss = held_out_loss(
        model,
        dataset,
        held_out=config.eval.held_out,
        batch=config.data.samples_per_micro_batch,
        rank=group.rank,
        world_size=group.world_size,
    )
    group.note_evaluation(loss)
