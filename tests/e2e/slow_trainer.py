"""The reference trainer with micro-batches of 0.1 s; once HEADWAY_SLOW exists, 0.4 s on rank 1 of group 1."""

import os
import time
from pathlib import Path

import torch

from replica.attempt import Attempt
from train.__main__ import main

backward = Attempt.backward


def slow_backward(self: Attempt, loss: torch.Tensor, inputs: torch.Tensor | None = None) -> None:
    place = (os.environ["REPLICA_GROUP_ID"], os.environ["RANK"])
    is_slow = place == ("1", "1") and Path(os.environ["HEADWAY_SLOW"]).exists()
    time.sleep(0.4 if is_slow else 0.1)
    backward(self, loss, inputs)


Attempt.backward = slow_backward  # type: ignore[method-assign]
main()
