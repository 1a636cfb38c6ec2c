"""The update of a committed step: mean gradient, clipping, learning rate from the step, optimizer."""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from replica.averaging import GradientSum
from replica.mesh import sibling_death_ends_the_group


class Updater:
    """Applies committed steps to one model. Belongs to the training thread.

    learning_rate: from the number of a step to its rate, or None to leave the optimizer's own.
    clip_norm: bound of the gradient's 2-norm over the whole model, or None.
    """

    def __init__(
        self,
        *,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        gradients: GradientSum,
        learning_rate: Callable[[int], float] | None,
        clip_norm: float | None,
    ) -> None:
        self._parameters = list(parameters.values())
        self._optimizer = optimizer
        self._gradients = gradients
        self._learning_rate = learning_rate
        self._clip_norm = clip_norm
        self.grad_norm = 0.0

    def apply(self, step: int) -> float:
        """Take the optimizer step for the summed gradients; returns the learning rate.

        A collective of the group. Raises RestartError when a sibling is gone.
        """
        self._gradients.write_mean()
        with sibling_death_ends_the_group():
            self.grad_norm = self._clip()
        if self._learning_rate is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = self._learning_rate(step)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._gradients.reset()
        return float(self._optimizer.param_groups[0]["lr"])

    def _clip(self) -> float:
        """2-norm of the mean gradient over the whole model, before clipping."""
        bound = float("inf") if self._clip_norm is None else self._clip_norm
        norm = nn.utils.clip_grad_norm_(self._parameters, bound)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
