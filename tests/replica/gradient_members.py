"""Members of a sum over groups, each on a thread of its own, and the collectives that they meet in."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from replica.averaging import Reduced, gradient_sum
from replica.config import Mode

ROUNDS = 6


class Member:
    """One group of one rank, with a parameter of every shape and type that matters."""

    def __init__(self, mode: Mode, rounds: int = ROUNDS) -> None:
        self.parameters = {
            "b.weight": nn.Parameter(torch.zeros(3, 2)),
            "a.scalar": nn.Parameter(torch.zeros(())),
            "c.brain": nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)),
            "d.empty": nn.Parameter(torch.zeros(0, 5)),
            "e.double": nn.Parameter(torch.zeros(2, dtype=torch.float64)),
            "f.half": nn.Parameter(torch.zeros(3, dtype=torch.float16)),
        }
        self.sum = gradient_sum(mode, self.parameters, rounds)

    def run(self, index: int, gradient: float, loss: float = 0.0) -> None:
        for parameter in self.parameters.values():
            parameter.grad = torch.full_like(parameter, gradient)
        self.sum.add_round(index, loss)

    def run_random(self, index: int) -> None:
        """The same gradients whoever runs this round, of very different sizes."""
        source = torch.Generator().manual_seed(index)
        for parameter in self.parameters.values():
            spread = 1 if parameter.dtype is torch.float16 else 6
            noise = torch.randn(parameter.shape, generator=source) * 10.0 ** (spread * (index - 4))
            parameter.grad = noise.to(parameter.dtype)
        self.sum.add_round(index, index / 3)

    def gradients(self) -> list[float]:
        found = [parameter.grad for parameter in self.parameters.values()]
        return sorted({value for grad in found if grad is not None for value in grad.reshape(-1).tolist()})

    def mean(self) -> dict[str, torch.Tensor]:
        """The mean of the last reduce, by name of parameter."""
        self.sum.write_mean()
        gradients = {name: parameter.grad for name, parameter in self.parameters.items()}
        return {name: gradient.clone() for name, gradient in gradients.items() if gradient is not None}


class Meeting:
    """All-reduce of members that each run on a thread of their own, in the order of their seats."""

    def __init__(self, members: int) -> None:
        self._barrier = threading.Barrier(members, timeout=30)
        self._tensors: dict[int, torch.Tensor] = {}

    def reduce(
        self, seat: int, tensor: torch.Tensor, operation: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._tensors[seat] = tensor.clone()
        self._barrier.wait()
        result = operation(torch.stack([each for _, each in sorted(self._tensors.items())]))
        self._barrier.wait()
        tensor.copy_(result)


class Seat:
    """One member's end of a meeting."""

    def __init__(self, meeting: Meeting, number: int) -> None:
        self._meeting = meeting
        self._number = number

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        self._meeting.reduce(self._number, tensor, lambda rows: rows.sum(dim=0))

    def max_in_place(self, tensor: torch.Tensor) -> None:
        self._meeting.reduce(self._number, tensor, lambda rows: rows.amax(dim=0))


class Failing:
    """Collectives of a peer that died: the first `good` of them go well, as if one were alone."""

    def __init__(self, error: Exception, good: int = 0) -> None:
        self.seen: list[torch.Tensor] = []
        self._error = error
        self._good = good

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        self.seen.append(tensor)
        if len(self.seen) > self._good:
            raise self._error

    max_in_place = sum_in_place


def reduce_all(members: Sequence[Member], idle: Sequence[Member] = ()) -> list[Reduced]:
    """What each member gets when all of them reduce together; those in `idle` do not contribute."""
    everyone = [*members, *idle]
    meeting = Meeting(len(everyone))

    def one(seat: int) -> Reduced:
        result = everyone[seat].sum.reduce(Seat(meeting, seat), contribute=seat < len(members))
        assert isinstance(result, Reduced)
        return result

    with ThreadPoolExecutor(len(everyone)) as threads:
        return list(threads.map(one, range(len(everyone))))
