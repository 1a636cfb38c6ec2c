"""The sum of a step's gradients over rounds and over replica groups, in a float and an exact form.

What both promise: rounds are added one by one and held until the step is committed or given up; the
sum over groups says for each round how often it is in it; a group may try again with what it holds;
the mean is taken over the micro-batches of the step, never over the groups that live.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from replica.config import Mode
from replica.error_line import one_line
from replica.exact_sum import ExactSum, mean_in_place


class Collectives(Protocol):
    """All-reduce over the groups of the quorum, of contiguous tensors on the CPU.

    Both block until done; they raise RuntimeError or TimeoutError when that fails, and may then
    still write into the tensor for a while.
    """

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """The sum over groups, element by element."""

    def max_in_place(self, tensor: torch.Tensor) -> None:
        """The maximum over groups, element by element."""


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """A sum over all groups, by the rank that asked.

    counts[i] is how many groups contributed round i (all must be 1), losses[i] the loss of this
    rank's micro-batch in round i. bad_rounds are those with a loss or gradient that is infinite or
    not a number; overflow says that a sum of finite gradients is not finite.
    """

    counts: tuple[int, ...]
    losses: tuple[float, ...]
    bad_rounds: tuple[int, ...] = ()
    overflow: bool = False

    @property
    def missing_rounds(self) -> tuple[int, ...]:
        """Rounds that are not in the sum exactly once."""
        return tuple(index for index, count in enumerate(self.counts) if count != 1)

    @property
    def finite(self) -> bool:
        """Whether every loss, gradient and sum is a finite number."""
        return not self.bad_rounds and not self.overflow


@dataclass(frozen=True, kw_only=True)
class ReduceFailed:
    """The sum over groups did not come about; expected when a peer dies."""

    error: str


class GradientSum(ABC):
    """Adds up the sharded gradients of one rank: round by round, then over groups.

    `held` are the rounds that have been added since the last `reset`. Belongs to the training
    thread.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], rounds: int) -> None:
        # A frozen parameter gets no gradient: with a zero for one, weight decay would move it.
        self._parameters = [parameters[name] for name in sorted(parameters) if parameters[name].requires_grad]
        self._sizes = [_local(parameter.data).numel() for parameter in self._parameters]
        self._size = sum(self._sizes)
        self._rounds = rounds
        self._losses: dict[int, float] = {}
        self._bad: set[int] = set()

    @property
    def held(self) -> frozenset[int]:
        """Rounds whose gradients are in the sum of this rank."""
        return frozenset(self._losses)

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Bytes of memory that it takes, whatever the number of rounds."""

    @property
    @abstractmethod
    def wire_bytes(self) -> int:
        """Bytes that this rank brings into a sum over groups."""

    def reset(self) -> None:
        """Forget all rounds."""
        self._losses.clear()
        self._bad.clear()
        self._clear()

    @torch.no_grad()
    def add_round(self, index: int, loss: float) -> None:
        """Take in the gradients that round `index` left in the parameters, and clear them there.

        Gradients of other types are first rounded to float32. Raises ValueError when the round is
        held already.
        """
        if index in self._losses:
            raise ValueError(f"round {index} is in the sum already")
        self._losses[index] = loss
        if not self._take_gradients() or loss - loss != 0:
            self._bad.add(index)
        for parameter in self._parameters:
            parameter.grad = None

    def reduce(self, collectives: Collectives, *, contribute: bool = True) -> Reduced | ReduceFailed:
        """Sum over all groups; blocks as long as that does. All rounds stay held, whatever comes.

        With `contribute` false this rank takes part, and adds nothing to the sum.
        """
        try:
            return self._reduce(collectives, contribute)
        except (RuntimeError, TimeoutError) as error:
            # The abandoned collective may still write into what was sent.
            self._renew_wire()
            return ReduceFailed(error=one_line(error))

    @torch.no_grad()
    def write_mean(self) -> None:
        """Put the mean over all micro-batches of the step into the parameters' `grad`.

        FSDP2 has already taken the mean over the ranks of the group that ran a round, so the sum
        of the last `reduce` is divided by the number of rounds; it cannot be read again.
        """
        mean, offset = self._mean(), 0
        for parameter, size in zip(self._parameters, self._sizes, strict=True):
            local = _local(parameter.data)
            piece = mean[offset : offset + size].reshape(local.shape).to(local.device, local.dtype)
            parameter.grad = _like(parameter.data, piece)
            offset += size

    def _take_gradients(self) -> bool:
        """Add the gradients up, or nothing and return False where one is not finite."""
        packed, offset = self._packed(), 0
        for parameter, size in zip(self._parameters, self._sizes, strict=True):
            piece = packed[offset : offset + size]
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(_local(parameter.grad).reshape(-1))
            offset += size
        if not _is_finite(packed):
            return False
        self._add(packed)
        return True

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _packed(self) -> torch.Tensor:
        """Memory for the gradients of one round (float32, all parameters in order of name)."""

    @abstractmethod
    def _add(self, gradients: torch.Tensor) -> None: ...

    @abstractmethod
    def _reduce(self, collectives: Collectives, contribute: bool) -> Reduced: ...

    @abstractmethod
    def _renew_wire(self) -> None: ...

    @abstractmethod
    def _mean(self) -> torch.Tensor:
        """The mean (float32, all parameters in order of name), on the CPU."""


class FloatGradientSum(GradientSum):
    """Plain float32 addition: the last bits depend on who added what in which order.

    The wire holds all gradients in order of parameter name, then per round its loss, its count and
    whether it is bad. It lies on the CPU, where gloo reduces it.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], rounds: int) -> None:
        super().__init__(parameters, rounds)
        self._sum = torch.zeros(self._size, dtype=torch.float32)
        self._renew_wire()

    @property
    def bytes(self) -> int:
        """A sum and a wire, 8 bytes per local parameter."""
        return self._sum.nbytes + self._wire.nbytes

    @property
    def wire_bytes(self) -> int:
        """4 bytes per local parameter, and a few per round."""
        return self._wire.nbytes

    def _clear(self) -> None:
        self._sum.zero_()

    def _renew_wire(self) -> None:
        self._wire = torch.zeros(self._size + 3 * self._rounds, dtype=torch.float32)

    def _packed(self) -> torch.Tensor:
        # Between two sums over groups the wire is idle memory.
        return self._wire[: self._size]

    def _add(self, gradients: torch.Tensor) -> None:
        self._sum += gradients

    def _reduce(self, collectives: Collectives, contribute: bool) -> Reduced:
        self._wire.zero_()
        gradients, notes = self._wire[: self._size], self._wire[self._size :].view(3, self._rounds)
        if contribute:
            gradients.copy_(self._sum)
            for index, loss in self._losses.items():
                notes[:, index] = torch.tensor([loss, 1.0, float(index in self._bad)])
        collectives.sum_in_place(self._wire)
        losses, counts, bad = notes.tolist()
        return Reduced(
            counts=tuple(int(count) for count in counts),
            losses=tuple(losses),
            bad_rounds=tuple(index for index, value in enumerate(bad) if value),
            overflow=not _is_finite(gradients),
        )

    def _mean(self) -> torch.Tensor:
        return self._wire[: self._size].div_(self._rounds)


class ExactGradientSum(GradientSum):
    """The order-free sum of `replica.exact_sum`: the same bits whoever added what in which order.

    Two all-reduces: the maximum of the windows' places (uint8), then the sum of the integers
    (int64), which are followed per round by its loss (the bits of a float64, from the one group
    that ran it), its count and whether it is bad. The sum lies where the gradients do; the wire on
    the CPU, where gloo reduces it.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], rounds: int) -> None:
        super().__init__(parameters, rounds)
        devices = [_local(parameter.data).device for parameter in self._parameters]
        device = devices[0] if devices else torch.device("cpu")
        self._sum = ExactSum(self._size, device)
        self._staging = None if device.type == "cpu" else torch.empty(self._size, device=device)
        self._renew_wire()

    @property
    def bytes(self) -> int:
        """A sum and a wire, 22 bytes per local parameter; 4 more where gradients are not on the CPU."""
        staging = 0 if self._staging is None else self._staging.nbytes
        return self._sum.bytes + self.wire_bytes + staging

    @property
    def wire_bytes(self) -> int:
        """9 bytes per local parameter, and a few per round."""
        return self._places.nbytes + self._wire.nbytes

    def _clear(self) -> None:
        self._sum.clear()

    def _renew_wire(self) -> None:
        self._places = torch.zeros(self._size, dtype=torch.uint8)
        self._wire = torch.zeros(self._size + 3 * self._rounds, dtype=torch.int64)

    def _packed(self) -> torch.Tensor:
        # Between two sums over groups the wire is idle memory.
        return self._wire.view(torch.float32)[: self._size] if self._staging is None else self._staging

    def _add(self, gradients: torch.Tensor) -> None:
        self._sum.add(gradients)

    def _reduce(self, collectives: Collectives, contribute: bool) -> Reduced:
        notes = self._wire[self._size :].view(3, self._rounds).zero_()
        if contribute:
            self._sum.places(out=self._places)
            for index, loss in self._losses.items():
                notes[:, index] = torch.tensor([_bits_of(loss), 1, int(index in self._bad)])
        else:
            self._places.zero_()
        collectives.max_in_place(self._places)
        if contribute:
            self._sum.raise_places(self._places)
            self._sum.write(self._wire[: self._size])
        else:
            self._wire.zero_()
        collectives.sum_in_place(self._wire)
        losses, counts, bad = notes.tolist()
        return Reduced(
            counts=tuple(counts),
            losses=tuple(_from_bits(bits) for bits in losses),
            bad_rounds=tuple(index for index, value in enumerate(bad) if value),
        )

    def _mean(self) -> torch.Tensor:
        return mean_in_place(self._wire[: self._size], self._places, self._rounds)


def gradient_sum(mode: Mode, parameters: Mapping[str, nn.Parameter], rounds: int) -> GradientSum:
    """The form of sum that `mode` asks for, in a step of `rounds` rounds."""
    kind = ExactGradientSum if mode is Mode.EXACT else FloatGradientSum
    return kind(parameters, rounds)


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite numbers, looked at once and without a temporary of its size."""
    if tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _bits_of(value: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _from_bits(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


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
