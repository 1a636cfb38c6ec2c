"""The sum of a step's gradients over rounds and over replica groups.

This form adds plain floating-point numbers. What it promises to its caller does not depend on
that: rounds are added one by one, the sum over groups says for each round how often it is in it,
and the mean is taken over the micro-batches of the step, never over the groups that live.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """A sum over all groups, by the rank that asked.

    counts[i] is how many groups contributed round i (all must be 1), losses[i] the loss of this
    rank's micro-batch in round i. finite: no gradient or loss is infinite or not a number.
    """

    counts: tuple[int, ...]
    losses: tuple[float, ...]
    finite: bool

    @property
    def missing_rounds(self) -> tuple[int, ...]:
        """Rounds that are not in the sum exactly once."""
        return tuple(index for index, count in enumerate(self.counts) if count != 1)


@dataclass(frozen=True, kw_only=True)
class ReduceFailed:
    """The sum over groups did not come about; expected when a peer dies."""

    error: str


class GradientSum:
    """Adds up the sharded gradients of one rank, round by round, in one float32 buffer.

    Layout of the buffer: all gradients in order of parameter name, then one loss per round, then
    one count per round. It lies on the CPU, where gloo reduces it. Memory: 4 bytes per local
    parameter, whatever the number of rounds. Belongs to the training thread.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], rounds: int) -> None:
        self._parameters = [parameters[name] for name in sorted(parameters)]
        self._sizes = [_local(parameter.data).numel() for parameter in self._parameters]
        self._rounds = rounds
        self._gradients = sum(self._sizes)
        self._buffer = self._new_buffer()

    def _new_buffer(self) -> torch.Tensor:
        return torch.zeros(self._gradients + 2 * self._rounds, dtype=torch.float32)

    def reset(self) -> None:
        """Forget all rounds."""
        self._buffer.zero_()

    @torch.no_grad()
    def add_round(self, index: int, loss: float) -> None:
        """Take the gradients that round `index` left in the parameters, and clear them there."""
        offset = 0
        for parameter, size in zip(self._parameters, self._sizes, strict=True):
            if parameter.grad is not None:
                gradient = _local(parameter.grad).reshape(-1)
                self._buffer[offset : offset + size] += gradient.to("cpu", torch.float32)
                parameter.grad = None
            offset += size
        self._buffer[self._gradients + index] += loss
        self._buffer[self._gradients + self._rounds + index] += 1

    def reduce(self, sum_in_place: Callable[[torch.Tensor], None]) -> Reduced | ReduceFailed:
        """Sum over all groups with `sum_in_place`; blocks as long as that does.

        After a failure the buffer is given up, since the abandoned collective may still write
        into it, and the rounds are lost.
        """
        try:
            sum_in_place(self._buffer)
        except (RuntimeError, TimeoutError) as error:
            self._buffer = self._new_buffer()
            return ReduceFailed(
                error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        losses = self._buffer[self._gradients : self._gradients + self._rounds]
        counts = self._buffer[self._gradients + self._rounds :]
        return Reduced(
            counts=tuple(int(count) for count in counts.tolist()),
            losses=tuple(losses.tolist()),
            finite=bool(torch.isfinite(self._buffer).all()),
        )

    @torch.no_grad()
    def write_mean(self) -> None:
        """Put the mean over all micro-batches of the step into the parameters' `grad`.

        FSDP2 has already taken the mean over the ranks of the group that ran a round, so the sum
        is divided by the number of rounds.
        """
        mean, offset = self._buffer[: self._gradients] / self._rounds, 0
        for parameter, size in zip(self._parameters, self._sizes, strict=True):
            local = _local(parameter.data)
            piece = mean[offset : offset + size].reshape(local.shape).to(local.device, local.dtype)
            parameter.grad = _like(parameter.data, piece)
            offset += size


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """`local` as a DTensor placed like `parameter`, or as it is when that is a plain tensor."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def mean_loss(losses: Sequence[float]) -> float:
    """Mean of a rank's losses over the rounds of a step, added in order of round."""
    return sum(losses) / len(losses)
