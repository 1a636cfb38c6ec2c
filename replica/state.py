"""The state of a job on this rank: its tensors by name, copied out, checked, adopted, digested.

The state is all parameters, buffers and optimizer state. Sharded tensors (FSDP2 splits dimension 0
over the ranks of the group) are held as local shards, everything else is equal on all ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from replica.errors import UserError
from replica.mesh import sibling_death_ends_the_group
from replica.transfer.memory import flat_bytes, view


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of the state: its local part, and the shape of the whole.

    like: the sharded tensor that it is a part of, None where every rank has the whole.
    """

    name: str
    local: torch.Tensor
    shape: tuple[int, ...]
    like: DTensor | None = None

    @property
    def sharded(self) -> bool:
        """Whether dimension 0 is cut over the ranks of the group."""
        return self.like is not None

    @property
    def label(self) -> bytes:
        """Name, dtype and full shape, as they go into the digest."""
        return f"{self.name}|{self.local.dtype}|{self.shape}\n".encode()


def entry_of(name: str, tensor: torch.Tensor) -> Entry:
    """Describe a tensor or DTensor. Raises UserError for a sharding other than FSDP2's default."""
    if not isinstance(tensor, DTensor):
        return Entry(name=name, local=tensor.detach(), shape=tuple(tensor.shape))
    if tuple(tensor.placements) != (Shard(0),):
        raise UserError(
            f"{name} is sharded as {tensor.placements}: only FSDP2's sharding of dimension 0 is supported"
        )
    return Entry(name=name, local=tensor.to_local().detach(), shape=tuple(tensor.shape), like=tensor)


class TrainingState:
    """The tensors of one model and its optimizer on this rank.

    Made after the model is sharded. It brings the optimizer's lazily made state into being, so
    that a joiner that has not taken a step yet has every tensor that a donor sends. Belongs to
    the training thread.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        materialise(optimizer)
        # Parameters and optimizer state stay the same tensors for life; a module may rebind a buffer.
        self._lasting = tuple(self._collect())

    @property
    def _entries(self) -> dict[str, Entry]:
        """All tensors of the state by name, in order of name."""
        buffers = [entry_of(f"buffer.{name}", buffer) for name, buffer in self._model.named_buffers()]
        return {entry.name: entry for entry in sorted((*self._lasting, *buffers), key=lambda e: e.name)}

    def _collect(self) -> Iterator[Entry]:
        for name, parameter in self.parameters.items():
            yield entry_of(f"parameter.{name}", parameter.data)
        for name, parameter in self.parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield entry_of(f"optimizer.{name}.{key}", value)
                elif value is not None:
                    raise UserError(
                        f"optimizer state {key!r} of {name} is a {type(value).__name__}: "
                        f"only tensors can be healed"
                    )

    @property
    def bytes(self) -> int:
        """Bytes that this rank holds of the state."""
        return sum(entry.local.numel() * entry.local.element_size() for entry in self._entries.values())

    def entries(self) -> tuple[Entry, ...]:
        """All tensors of the state, in order of name."""
        return tuple(self._entries.values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """This rank's part of the state, by name: the tensors that are trained, not copies."""
        return {name: entry.local for name, entry in self._entries.items()}

    @torch.no_grad()
    def adopt(self, received: Mapping[str, torch.Tensor]) -> None:
        """Take over a state of equal names, types and shapes, or these very tensors. Cannot fail half-way."""
        for name, entry in self._entries.items():
            entry.local.copy_(received[name])

    def digest(self, group_world_size: int) -> str:
        """Hash of the full, unsharded state, equal for any number of ranks per group.

        A collective of the group: all ranks call it, rank 0 gets 32 hexadecimal digits (xxh3_128)
        and the others an empty string. The hash runs over the tensors in order of name, each as
        its label and its bytes, row-major. Raises RestartError when a sibling is gone.
        """
        entries = self._entries.values()
        parts = _gather_shards([entry for entry in entries if entry.sharded], group_world_size)
        if parts is None:
            return ""
        hasher, offsets = xxhash.xxh3_128(), [0] * group_world_size
        for entry in entries:
            hasher.update(entry.label)
            if not entry.sharded:
                hasher.update(view(_bytes_of(entry.local)))
                continue
            # Dimension 0 is cut into consecutive blocks: joining the ranks' bytes gives the whole.
            for rank, part in enumerate(parts):
                size = _shard_bytes(entry, rank, group_world_size)
                hasher.update(view(part[offsets[rank] : offsets[rank] + size]))
                offsets[rank] += size
        return hasher.hexdigest()

    def layout(self) -> int:
        """A 63-bit hash of names, types and full shapes; equal in all groups of a job."""
        labels = b"".join(entry.label for entry in self._entries.values())
        return xxhash.xxh64_intdigest(labels) >> 1


def _gather_shards(sharded: Sequence[Entry], group_world_size: int) -> list[torch.Tensor] | None:
    """On rank 0 the packed shards of every rank (uint8), elsewhere None."""
    mine = torch.cat([_bytes_of(entry.local) for entry in sharded] or [torch.empty(0, dtype=torch.uint8)])
    if group_world_size == 1:
        return [mine]
    size = sum(_shard_bytes(entry, 0, group_world_size) for entry in sharded)
    mine = nn.functional.pad(mine, (0, size - mine.numel()))
    first = dist.get_rank() == 0
    parts = [torch.empty_like(mine) for _ in range(group_world_size)] if first else None
    with sibling_death_ends_the_group():
        dist.gather(mine, parts, dst=0)
    return parts


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return flat_bytes(tensor.detach().cpu())


def _shard_bytes(entry: Entry, rank: int, world_size: int) -> int:
    """Bytes of `rank`'s shard when dimension 0 is cut into `world_size` blocks, as torch.chunk does."""
    rows, row_elements = entry.shape[0], 1
    for length in entry.shape[1:]:
        row_elements *= length
    block = -(-rows // world_size)
    mine = max(0, min(block, rows - rank * block))
    return mine * row_elements * entry.local.element_size()


@torch.no_grad()
def materialise(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer create its state tensors, and leave every value as before a first step.

    One step with zero gradients and without weight decay, which would end up in momentum; then the
    parameters are put back and step counts are set to zero.
    """
    if optimizer.state:
        return
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    decays = [group.get("weight_decay") for group in groups]
    for group in groups:
        group.update({"weight_decay": 0.0} if "weight_decay" in group else {})
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, decay in zip(groups, decays, strict=True):
        group.update({"weight_decay": decay} if "weight_decay" in group else {})
    for parameter, old in zip(parameters, before, strict=True):
        parameter.copy_(old)
        if isinstance(count := optimizer.state[parameter].get("step"), torch.Tensor):
            count.zero_()
