"""A sum of float32 vectors whose result depends neither on the order nor on the grouping of its terms.

Floating-point addition rounds, so that the order decides the last bits. Here each element has a
window of three digits of 16 bits on a fixed grid of powers of two: with its window at place p, digit
k is worth 2**(16 * (p - k) - 127). The place of an element is the highest that any of its terms
reaches. Each term is cut, towards zero, to whole digits, and the digits are added up as integers,
each by itself and without carry. When a higher place comes up, the window moves, and the lowest
digit is dropped for the terms so far, as it would have been had they come later. So what a term adds
depends on that term and on the final place alone, and that is a maximum: both are free of order.

How exact it is: from the first bit of the largest term x down, a window holds at least 33 bits, and a
float32 has 24. So x is taken whole, as is every term down to x / 512, and of each smaller one less
than x / 2**32 is lost. Floats lose up to 2**-24 of the sum so far with each addition.

Method: J. Demmel and H. D. Nguyen, "Parallel Reproducible Summation", IEEE Transactions on
Computers 64 (7), 2015 (there with floating-point bins), with the windows agreed by a maximum.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch

# The digits of one term are below 2**16; their sums, and differences of those, fit 32 bits with sign.
MAX_TERMS = 1 << 14
BYTES_PER_ELEMENT = 13
_DIGIT_BITS = 16
_DIGITS = 3
_HIGHEST_PLACE = 15
# Bits of a float32 above its mantissa, and of those above its bin of 16 exponents.
_MANTISSA_BITS = 23
_PLACE_BITS = 27
# On a CPU, so few that what is touched for a chunk stays in its caches; elsewhere, so many that
# starting the operations does not count.
_CHUNK = 1 << 16
_DEVICE_CHUNK = 1 << 22


class ExactSum:
    """The sum so far of at most MAX_TERMS vectors of `size` finite float32 numbers.

    Memory: BYTES_PER_ELEMENT times `size`, and some scratch of constant size. Not safe for use by
    several threads.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self._size = size
        self._places = torch.zeros(size, dtype=torch.uint8, device=device)
        self._digits = torch.zeros(_DIGITS, size, dtype=torch.int32, device=device)
        self._empty = True
        chunk = _CHUNK if self._places.device.type == "cpu" else _DEVICE_CHUNK
        scratch = _Scratch(min(size, chunk), device)
        self._chunks = [
            (part, _Chunk(self._places[part], self._digits[:, part], scratch)) for part in _parts(size, chunk)
        ]

    @property
    def bytes(self) -> int:
        """Bytes of memory for the sum, scratch left out."""
        return BYTES_PER_ELEMENT * self._size

    def clear(self) -> None:
        """Go back to a sum of no terms."""
        self._places.zero_()
        self._digits.zero_()
        self._empty = True

    def add(self, term: torch.Tensor) -> None:
        """Add a float32 vector (`size`), contiguous, of finite numbers; it is not changed."""
        for part, chunk in self._chunks:
            chunk.add(term[part], first=self._empty)
        self._empty = False

    def places(self, out: torch.Tensor) -> None:
        """Write the place of each element (uint8, `size`) into `out`."""
        out.copy_(self._places)

    def raise_places(self, places: torch.Tensor) -> None:
        """Move the windows up to `places` (uint8, `size`), where they are not there already."""
        for part, chunk in self._chunks:
            chunk.raise_to(places[part])

    def write(self, out: torch.Tensor) -> None:
        """Write the sum as integers (int64, `size`), each in units of its last digit, into `out`.

        `out` lies on the CPU. With equal places, these integers of several sums may be added up, as
        long as they have no more than MAX_TERMS terms together.
        """
        for part, chunk in self._chunks:
            chunk.write(out[part])


class _Scratch:
    """Memory for one chunk's arithmetic: to allocate it anew would cost more than the arithmetic."""

    def __init__(self, size: int, device: torch.device | str) -> None:
        self.places = torch.empty(size, dtype=torch.uint8, device=device)
        self.moves = torch.empty(size, dtype=torch.uint8, device=device)
        self.bits = torch.empty(size, dtype=torch.int32, device=device)
        self.change = torch.empty(size, dtype=torch.int32, device=device)
        self.rest = torch.empty(size, dtype=torch.float32, device=device)
        self.wide = torch.empty(size, dtype=torch.int64)


class _Chunk:
    """The arithmetic, on so many elements that all they touch stays in a processor's cache."""

    def __init__(self, places: torch.Tensor, digits: torch.Tensor, scratch: _Scratch) -> None:
        size = len(places)
        self._places = places
        self._digits = list(digits)
        self._reached = scratch.places[:size]
        self._moves = scratch.moves[:size]
        self._bits = scratch.bits[:size]
        self._power = scratch.bits[:size].view(torch.float32)
        self._change = scratch.change[:size]
        self._rest = scratch.rest[:size]
        self._wide = scratch.wide[:size]
        self._top = torch.tensor(254 << _MANTISSA_BITS, dtype=torch.int32)

    def add(self, term: torch.Tensor, *, first: bool) -> None:
        torch.bitwise_right_shift(term.view(torch.int32), _PLACE_BITS, out=self._bits)
        self._reached.copy_(self._bits).bitwise_and_(_HIGHEST_PLACE)
        if first:  # there is nothing yet in the windows that would have to move with them
            self._places.copy_(self._reached)
        else:
            self.raise_to(self._reached)
        self._add_digits(term)

    def _add_digits(self, term: torch.Tensor) -> None:
        bits, rest = self._bits, self._rest
        # The power of two that turns a number into units of its window's first digit, as its bits.
        torch.sub(self._top, bits.copy_(self._places), alpha=1 << _PLACE_BITS, out=bits)
        torch.mul(term, self._power, out=rest)
        first, *others = self._digits
        first.add_(bits.copy_(rest))  # the copy cuts towards zero
        for digit in others:
            rest.sub_(bits).mul_(float(1 << _DIGIT_BITS))
            digit.add_(bits.copy_(rest))

    def raise_to(self, places: torch.Tensor) -> None:
        # In practice some elements of every chunk move, by one place. To pick them out would cost
        # about as much as to treat all alike.
        digits, moves, moving = self._digits, self._moves.copy_(places), self._reached
        torch.maximum(moves, self._places, out=moves).sub_(self._places)
        self._places.add_(moves)
        for _ in range(min(_DIGITS, int(moves.max()))):
            one, change = self._bits.copy_(torch.clamp(moves, max=1, out=moving)), self._change
            for digit, above in pairwise(reversed(digits)):
                digit.addcmul_(one, torch.sub(above, digit, out=change))
            digits[0].sub_(one.mul_(digits[0]))
            moves.sub_(moving)

    def write(self, out: torch.Tensor) -> None:
        first, *others = self._digits
        out.copy_(first)
        for digit in others:
            torch.add(self._wide.copy_(digit), out, alpha=1 << _DIGIT_BITS, out=out)


def mean_in_place(integers: torch.Tensor, places: torch.Tensor, divisor: int) -> torch.Tensor:
    """Turn sums written by `ExactSum.write`, with windows at `places`, into means (float32).

    integers (int64) and places (uint8) lie on the CPU. The result lies in the first half of the
    memory of `integers`, whose contents are lost. Computed in float64, then rounded to float32.
    """
    means = integers.view(torch.float32)[: integers.numel()]
    for part in _parts(integers.numel(), _CHUNK):
        # The last digit of place 0 is worth 2**-159; here as the bits of a float64.
        exponents = places[part].to(torch.int16).mul_(_DIGIT_BITS).add_(1023 - 159)
        worth = exponents.to(torch.int64).bitwise_left_shift_(52).view(torch.float64)
        means[part] = worth.mul_(integers[part].to(torch.float64)).div_(divisor)
    return means


def _parts(size: int, length: int) -> Iterator[slice]:
    return (slice(start, min(size, start + length)) for start in range(0, size, length))
