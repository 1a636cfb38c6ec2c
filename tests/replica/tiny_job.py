"""A complete training script of a few seconds, for tests of the whole group; prints its final weights.

TINY_TROUBLE may be `nan` (the loss of one micro-batch of step 3 is never finite) or `batch-norm`.
"""

import json
import os

import torch
from torch import nn

from replica import ReplicaGroup, run

MICRO_BATCHES = 4
SAMPLES = 3
STEPS = 6
DATA = torch.linspace(-1, 1, 60).reshape(30, 2)
TROUBLE = os.environ.get("TINY_TROUBLE", "")


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)]
    return nn.Sequential(*layers, *([nn.BatchNorm1d(1)] if TROUBLE == "batch-norm" else []))


def loss_of(model: nn.Module, indices: tuple[int, ...]) -> torch.Tensor:
    rows = DATA[list(indices)]
    return (model(rows)[:, 0] - rows.sum(dim=1)).square().mean()


def rate(step: int) -> float:
    return 0.1 / (1 + step)


def main() -> None:
    with ReplicaGroup.from_env(
        steps=STEPS, micro_batches=MICRO_BATCHES, seed=5, digest_every=1, max_nonfinite_steps=3
    ) as group:
        model = group.shard(build())
        group.register(model, torch.optim.AdamW(model.parameters()), learning_rate=rate, clip_norm=0.5)
        for attempt in group.attempts():
            for micro_batch in attempt.micro_batches():
                indices = micro_batch.samples(SAMPLES, len(DATA))
                loss = loss_of(model, indices)
                if TROUBLE == "nan" and attempt.step == 3 and micro_batch.index == 2:
                    loss = loss * float("nan")
                attempt.backward(loss, torch.tensor(indices))
            attempt.commit()
        values = {name: value.full_tensor().tolist() for name, value in model.state_dict().items()}
        print(json.dumps({"step": group.step, "weights": values, "seconds": group.seconds_by_cause()}))


if __name__ == "__main__":
    run(main)
