"""Buffers that training changes would differ between groups: a model that has such is refused."""

import torch
import xxhash
from torch import nn

from replica.errors import UserError
from replica.transfer.memory import flat_bytes, view


class _Mark:
    """A buffer at one moment. It holds the tensor, so that no other can come to have its identity."""

    def __init__(self, buffer: torch.Tensor, version: int) -> None:
        self._buffer, self._version = buffer, version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Mark) and self._buffer is other._buffer and self._version == other._version

    __hash__ = None  # type: ignore[assignment]


class BufferGuard:
    """Watches the buffers of a model: none of them may change its contents while rounds run.

    Groups run different rounds, and nobody averages buffers: one that a forward changes would be
    different in every group. Belongs to the training thread.
    """

    def __init__(self, model: nn.Module) -> None:
        """Remember the buffers as they are. Raises UserError for modules that are known to change theirs."""
        _refuse_running_statistics(model)
        self._model = model
        self._contents = {name: _hash(buffer) for name, buffer in model.named_buffers()}
        self._seen = self._marks()

    def check(self) -> None:
        """Raise UserError, naming the module, if a buffer has changed. Cheap when none was touched."""
        if (marks := self._marks()) == self._seen:
            return
        for name, buffer in self._model.named_buffers():
            if marks[name] != self._seen.get(name) and _hash(buffer) != self._contents.get(name):
                owner, _, short = name.rpartition(".")
                kind = type(self._model.get_submodule(owner)).__name__
                raise UserError(
                    f"module {owner or 'root'} ({kind}) changes its buffer {short} while it trains, "
                    f"which would differ between groups: make it a function of the step, or a parameter"
                )
        self._seen = marks

    def _marks(self) -> dict[str, _Mark]:
        """What changes when a buffer is written to or replaced."""
        return {name: _Mark(buffer, buffer._version) for name, buffer in self._model.named_buffers()}


def _hash(buffer: torch.Tensor) -> int:
    return xxhash.xxh3_64_intdigest(view(flat_bytes(buffer.detach().cpu())))


def _refuse_running_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise UserError(
                f"module {name or 'root'} ({type(module).__name__}) keeps running statistics, which would "
                f"differ between groups: use LayerNorm, RMSNorm or GroupNorm, or track_running_stats=False"
            )
