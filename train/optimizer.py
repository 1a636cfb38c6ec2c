"""The optimizer and its learning rate, which is a pure function of the step."""

import math

from torch import nn
from torch.optim import AdamW

from train.config import JobConfig, OptimizerSection, Schedule


def build_optimizer(model: nn.Module, config: OptimizerSection) -> AdamW:
    """Build AdamW over the model's parameters; weight decay applies to matrices only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return AdamW([g for g in groups if g["params"]], lr=config.lr, betas=betas, eps=config.eps)


def learning_rate(config: JobConfig, step: int) -> float:
    """Return the learning rate of the update that makes step N into N + 1; pure.

    It rises in a line over the warm-up, then stays, or falls along half a cosine to
    ``lr * min_lr_ratio`` at the job's last step, and stays there.
    """
    optimizer = config.optimizer
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    if optimizer.schedule is Schedule.CONSTANT:
        return optimizer.lr
    length = max(1, config.job.steps - 1 - optimizer.warmup_steps)
    progress = min(1.0, (step - optimizer.warmup_steps) / length)
    low = optimizer.lr * optimizer.min_lr_ratio
    return low + (optimizer.lr - low) * 0.5 * (1.0 + math.cos(math.pi * progress))
