"""Tensors as the bytes that travel: copied out by a donor, written in place by a joiner."""

from collections.abc import Mapping, Sequence

import torch

from replica.transfer.manifest import (
    DTYPE_BYTES,
    MAX_DIMENSIONS,
    MAX_NAME_CHARS,
    Layout,
    TensorSpec,
)


def specs_of(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Describe tensors in order. Raises ValueError, naming the tensor, for what cannot travel."""
    return tuple(_spec(name, tensor) for name, tensor in tensors.items())


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES or tensor.layout is not torch.strided:
        raise ValueError(f"{name} is a {tensor.layout} tensor of {tensor.dtype}: it cannot be sent to a peer")
    if len(name) > MAX_NAME_CHARS or not name.isprintable() or tensor.dim() > MAX_DIMENSIONS:
        raise ValueError(f"{name[:80]!r} cannot be sent to a peer: its name or its shape is too long")
    return TensorSpec(name=name, dtype=dtype, shape=tuple(tensor.shape))


@torch.no_grad()
def copy_out(tensors: Mapping[str, torch.Tensor], layout: Layout) -> torch.Tensor:
    """One flat copy in host memory (uint8), as `layout` says. Takes tensors of any device and strides."""
    flat = torch.empty(layout.nbytes, dtype=torch.uint8)
    for tensor, spec, end in zip(tensors.values(), layout.tensors, layout.ends, strict=True):
        if spec.nbytes:
            flat[end - spec.nbytes : end].copy_(flat_bytes(tensor.detach()))
    return flat


def view(flat: torch.Tensor) -> memoryview:
    """The memory of a contiguous uint8 tensor on the CPU, not copied."""
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as uint8, row-major; a view where the tensor is contiguous."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def empty_tensors(layout: Layout) -> dict[str, torch.Tensor]:
    """New tensors in host memory for every tensor of a layout; their values are not set."""
    return {spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in layout.tensors}


class Destination:
    """Where a joiner's bytes go: its own tensors, or new ones of the same kind.

    An own tensor that is not plain host memory gets a buffer of its own, which `finish` copies in.
    """

    def __init__(self, own: Mapping[str, torch.Tensor], layout: Layout, *, fresh: bool) -> None:
        self._layout = layout
        self.tensors: dict[str, torch.Tensor] = {}
        self._later: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._views: list[memoryview] = []
        for name, tensor in own.items():
            mine = tensor.detach()
            direct = fresh and _is_plain(mine)
            memory = mine if direct else torch.empty(mine.shape, dtype=mine.dtype)
            if fresh and not direct:
                self._later.append((mine, memory))
            self.tensors[name] = tensor if fresh else memory
            self._views.append(view(flat_bytes(memory)))

    def parts(self, chunk: int) -> Sequence[memoryview]:
        """The memory that a chunk's bytes go to, in order."""
        return [self._views[part.tensor][part.start : part.stop] for part in self._layout.segments(chunk)]

    @torch.no_grad()
    def finish(self) -> None:
        """Bring the bytes to where they could not be written directly. Once, when all are verified."""
        for mine, memory in self._later:
            mine.copy_(memory)
        self._later.clear()


def _is_plain(tensor: torch.Tensor) -> bool:
    # A conjugated or negated view holds other bits than its values.
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
