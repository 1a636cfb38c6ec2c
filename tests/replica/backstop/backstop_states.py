"""States that tests save and load: every kind of tensor, with values that any rank can work out."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from replica.transfer.memory import flat_bytes

# Name, type of element, full shape; dimension 0 of the parameters is cut over the ranks.
KINDS: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...] = (
    ("parameter.weight", torch.float32, (7, 5)),
    ("parameter.one", torch.float32, (1,)),
    ("parameter.three", torch.bfloat16, (3, 2)),
    ("parameter.two.cubes", torch.float64, (2, 3, 4)),
    ("parameter.eight", torch.float8_e4m3fn, (9, 4)),
    ("parameter.none", torch.float32, (0, 4)),
    ("parameter.flat", torch.float16, (4, 0)),
    ("buffer.count", torch.int64, ()),
    ("buffer.mask", torch.bool, (3,)),
    ("buffer.none", torch.float32, (0,)),
    ("buffer.phase", torch.complex64, (3,)),
    ("buffer.small", torch.float8_e5m2, (5,)),
    ("buffer.wide", torch.int16, (3, 4)),
    ("optimizer.weight.step", torch.float32, ()),
)


def full(name: str, dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """The whole tensor of this name in the state with this seed: arbitrary bits."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + sum(name.encode()) * 31 + len(name))
    plain = torch.empty(shape, dtype=dtype)
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (plain.nbytes,), generator=generator)
    return bits.to(torch.uint8).view(dtype).reshape(shape) if plain.nbytes else plain


def local(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], seed: int, rank: int, of: int
) -> torch.Tensor:
    """What rank `rank` of `of` holds of it."""
    whole = full(name, dtype, shape, seed)
    if not name.startswith("parameter"):
        return whole
    pieces = torch.chunk(whole, of, dim=0)
    return pieces[rank].clone() if rank < len(pieces) else whole[:0].clone()


def state(seed: int, group: dist.ProcessGroup, kinds=KINDS) -> dict[str, torch.Tensor]:
    """This rank's part of the state with this seed."""
    mesh = DeviceMesh.from_group(group, "cpu")
    rank, of = dist.get_rank(group), dist.get_world_size(group)
    return {
        name: held(name, local(name, dtype, shape, seed, rank, of), shape, mesh)
        for name, dtype, shape in kinds
    }


def held(name: str, mine: torch.Tensor, shape: tuple[int, ...], mesh: DeviceMesh) -> torch.Tensor:
    """As the state holds it: a DTensor, or a tensor that is awkward in memory."""
    if name.startswith("parameter"):
        stride = torch.empty(shape).stride()
        return DTensor.from_local(
            mine, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
        )
    if name == "buffer.wide":
        return mine.t().contiguous().t()
    if name == "buffer.mask":
        return torch.cat([mine, mine])[3:]  # a part of a larger storage
    return mine


def clear(tensors: dict[str, torch.Tensor]) -> None:
    """Make every byte zero."""
    for tensor in tensors.values():
        plain = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        plain.copy_(torch.zeros(plain.shape).to(plain.dtype))


def bytes_of(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """The bits of this rank's part, by name."""
    plain = {n: t.to_local() if isinstance(t, DTensor) else t for n, t in tensors.items()}
    return {name: flat_bytes(tensor).numpy().tobytes() for name, tensor in plain.items()}
