"""Pure: which samples make up a micro-batch, as a function of seed, step and micro-batch alone.

All samples of all epochs form one endless global sequence. Step N takes the next
``micro_batches * samples_per_micro_batch`` places of it, micro-batch by micro-batch. Within an
epoch every sample of the data set comes once, in an order shuffled anew from the seed. Nothing
is remembered: whoever computes a micro-batch, first or again after a death, finds the same
samples, and no sample is lost or repeated.

The shuffle is a format-preserving permutation, computed place by place in constant time and
memory: a Feistel network over Z_a x Z_b with cycle walking, after J. Black and P. Rogaway,
"Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
"""

import math
import struct

import xxhash

# Changing this, or anything below, changes the order of samples of every job.
_FEISTEL_ROUNDS = 8
_PAIR = struct.Struct("<QQ")
_ORDER_TAG = 0x68656164776179  # keeps these keys apart from other uses of the same seed


def sample_indices(
    *,
    seed: int,
    step: int,
    micro_batch: int,
    micro_batches: int,
    samples_per_micro_batch: int,
    dataset_size: int,
) -> tuple[int, ...]:
    """Return the data set's indices of the samples of one micro-batch, in order.

    ``seed`` and ``step`` are below 2**64, ``micro_batch`` is one of 0..micro_batches-1. The
    micro-batch may be larger than the data set and may run over the end of an epoch.
    Raises ValueError when a number is out of its range.
    """
    _check(step, micro_batch, micro_batches, samples_per_micro_batch, dataset_size)
    first = (step * micro_batches + micro_batch) * samples_per_micro_batch
    return tuple(
        permuted(place=g % dataset_size, size=dataset_size, seed=seed, epoch=g // dataset_size)
        for g in range(first, first + samples_per_micro_batch)
    )


def permuted(*, place: int, size: int, seed: int, epoch: int) -> int:
    """Return where the shuffle of one epoch maps ``place``: a bijection of range(size).

    Takes constant memory and, on average, less than two walks through the network.
    """
    if not 0 <= place < size:
        raise ValueError(f"place {place} is not in range({size})")
    left_size = math.isqrt(size - 1) + 1  # the smallest integer whose square is at least size
    right_size = -(-size // left_size)
    key = xxhash.xxh3_64_intdigest(_PAIR.pack(seed, epoch), seed=_ORDER_TAG)
    # The network permutes range(left_size * right_size), at most a few numbers more than size:
    # walk along the cycle until it comes back into range. It must, since place itself is in range.
    value = _feistel(place, left_size, right_size, key)
    while value >= size:
        value = _feistel(value, left_size, right_size, key)
    return value


def _feistel(value: int, left_size: int, right_size: int, key: int) -> int:
    """Permute range(left_size * right_size). Each round adds to one half a hash of the other."""
    left, right = divmod(value, right_size)
    for number in range(0, _FEISTEL_ROUNDS, 2):
        left = (left + _mix(number, right, key)) % left_size
        right = (right + _mix(number + 1, left, key)) % right_size
    return left * right_size + right


def _mix(number: int, half: int, key: int) -> int:
    return xxhash.xxh3_64_intdigest(_PAIR.pack(number, half), seed=key)


def _check(step: int, micro_batch: int, micro_batches: int, samples: int, dataset_size: int) -> None:
    if step < 0:
        raise ValueError(f"step {step} is negative")
    if not 0 <= micro_batch < micro_batches:
        raise ValueError(f"micro_batch {micro_batch} is not in range({micro_batches})")
    if samples < 1:
        raise ValueError(f"samples_per_micro_batch {samples} is not positive")
    if dataset_size < 1:
        raise ValueError(f"dataset_size {dataset_size} is not positive")
