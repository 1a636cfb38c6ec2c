"""Random numbers of a micro-batch: they depend on seed, step and micro-batch, on nothing before."""

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import xxhash


def derive_seed(purpose: str, *numbers: int) -> int:
    """Return a 64-bit seed for one purpose; pure, and the same on every platform.

    ``numbers`` are integers of range(2**64). Raises struct.error for others.
    """
    packed = struct.pack(f"<{len(numbers)}Q", *numbers)
    return xxhash.xxh3_64_intdigest(purpose.encode() + b"\0" + packed)


def micro_batch_seed(seed: int, step: int, micro_batch: int) -> int:
    """Return the 64-bit seed of one micro-batch of one step; pure."""
    return derive_seed("micro-batch", seed, step, micro_batch)


@contextmanager
def seeded(seed: int, step: int, micro_batch: int) -> Iterator[None]:
    """Seed the global generators for one micro-batch, and restore them after, also on an error.

    These are torch's for the CPU and, where there is one, for the current CUDA device; numpy's
    and Python's. They are global to the process: enter this on the training thread only, and
    draw on no other thread meanwhile.
    """
    value = micro_batch_seed(seed, step, micro_batch)
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.random.get_rng_state()
    cuda_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    try:
        random.seed(value)
        np.random.seed([value & 0xFFFFFFFF, value >> 32])
        # Not torch.manual_seed: that would also seed the devices of which no state was kept.
        torch.default_generator.manual_seed(value)
        if cuda_state is not None:
            torch.cuda.manual_seed(value)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.random.set_rng_state(torch_state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state)
