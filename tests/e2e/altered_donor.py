"""The paced trainer, except that group 0 gives joiners a state that differs from its own.

Each altered state's digest is appended to the file that HEADWAY_ALTERED names. One rank per group.
"""

import os

import paced_trainer
import torch

from replica.state import TrainingState

tensors = TrainingState.tensors


def copies(state: TrainingState) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors(state).items()}


def altered(self: TrainingState) -> dict[str, torch.Tensor]:
    own, given = copies(self), copies(self)
    given["parameter.embedding.weight" if "parameter.embedding.weight" in given else max(given)].add_(1.0)
    self.adopt(given)
    with open(os.environ["HEADWAY_ALTERED"], "a") as file:
        file.write(self.digest(1) + "\n")
    self.adopt(own)
    return given


if os.environ["REPLICA_GROUP_ID"] == "0":
    TrainingState.tensors = altered  # type: ignore[method-assign]
paced_trainer.main()
