"""States to send in tests, with every kind of tensor that training may hold."""

from collections.abc import Mapping

import torch

from replica.transfer.manifest import DTYPE_BYTES


def every_kind() -> dict[str, torch.Tensor]:
    """One tensor of each type of element with arbitrary bits, and odd shapes."""
    generator = torch.Generator().manual_seed(1)
    state = {}
    for name, size in DTYPE_BYTES.items():
        bits = torch.randint(0, 2 if name == "bool" else 256, (15 * size,), generator=generator)
        state[name] = bits.to(torch.uint8).view(getattr(torch, name)).reshape(3, 5)
    return state | {
        "scalar": torch.tensor(7.5),
        "none": torch.zeros(0, 4),
        "no rows": torch.zeros(3, 0, 2, dtype=torch.bfloat16),
        "long": torch.arange(5000, dtype=torch.float32),
    }


def plain(value: float, *, count: int = 8, size: int = 4096) -> dict[str, torch.Tensor]:
    """`count` float32 tensors of `size` elements; all values differ between states of other `value`."""
    return {f"weight.{i}": torch.arange(size, dtype=torch.float32) + value * 1000 + i for i in range(count)}


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, row-major."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat.tolist())


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether two states are equal, bit for bit, in order, types and shapes."""
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and bits(one[name]) == bits(other[name])
        for name in one
    )
