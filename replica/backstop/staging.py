"""The copy of a rank's state in host memory that a save is written from, or read into."""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from replica.state import TrainingState


class Staging:
    """One shard of host memory, made at the first use and kept: a copy into warm memory is the fastest.

    mesh: the ranks of the group, on the CPU. Belongs to the thread that uses it at the time.
    """

    def __init__(self, state: TrainingState, mesh: DeviceMesh) -> None:
        self._state = state
        self._mesh = mesh
        self._copies: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the state as it is now. Blocks for the copy; nobody may be reading the last one."""
        copies = self._memory()
        for name, tensor in self._state.tensors().items():
            copies[name].copy_(tensor)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The copy by name: whole tensors, and DTensors over the group where the state is sharded."""
        copies = self._memory()
        return {entry.name: self._whole(entry.like, copies[entry.name]) for entry in self._state.entries()}

    def adopt(self) -> None:
        """Make the copy the state of this rank."""
        self._state.adopt(self._copies)

    def _memory(self) -> dict[str, torch.Tensor]:
        if not self._copies:
            own = self._state.tensors()
            self._copies = {
                name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in own.items()
            }
        return self._copies

    def _whole(self, like: DTensor | None, copy: torch.Tensor) -> torch.Tensor:
        if like is None:
            return copy
        return DTensor.from_local(
            copy, self._mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
