"""The loss on held-out samples, which are taken from the end of the data and never trained on."""

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from replica.errors import UserError
from train.data import Dataset
from train.model import loss_of


def training_size(dataset: Dataset, held_out: int) -> int:
    """Number of samples to train on: all but the last `held_out`. Raises UserError if none is left."""
    if held_out >= dataset.size:
        raise UserError(
            f"eval.samples = {held_out} leaves nothing to train on: the data has {dataset.size} samples of "
            f"data.sequence_length tokens"
        )
    return dataset.size - held_out


@torch.no_grad()
def held_out_loss(
    model: nn.Module, dataset: Dataset, *, held_out: int, batch: int, rank: int, world_size: int
) -> float:
    """Mean loss over this rank's share of the last `held_out` samples, `batch` at a time.

    A collective of the group: `world_size` must divide `held_out`, so that all ranks run equally
    many forwards. Draws no random numbers, and leaves the model in training mode.
    """
    mine = range(dataset.size - held_out + rank, dataset.size, world_size)
    device = next(model.parameters()).device
    model.eval()
    total = 0.0
    for start in range(0, len(mine), batch):
        part = mine[start : start + batch]
        inputs, targets = dataset.read(part)
        total += float(loss_of(model(inputs.to(device)), targets.to(device))) * len(part)
    # Without a backward, FSDP2 would keep the gathered weights, and the next forward would use them.
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    model.train()
    return total / len(mine)
