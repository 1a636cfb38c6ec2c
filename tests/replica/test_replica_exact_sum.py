"""The exact sum: the same bits in any order and grouping, and nearer to the truth than float sums."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replica import exact_sum
from replica.exact_sum import BYTES_PER_ELEMENT, MAX_TERMS, ExactSum, mean_in_place
from replica.rounds import MAX_ROUNDS

LARGEST = float(torch.finfo(torch.float32).max)
# Where windows begin and end, digits are full or empty, and numbers denormal.
EDGES = [
    *(sign * 2.0**power for sign in (1, -1) for power in (-149, -127, -126, -112, -111, -16, -1, 0, 1, 127)),
    *(sign * (2.0 - 2.0**-23) * 2.0**power for sign in (1, -1) for power in (-112, -1, 0, 16, 127)),
    *(0.0, -0.0, 1.0 + 2.0**-23, 1.1754942106924411e-38, 0.1, -0.1),
]
NUMBERS = st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from(EDGES))


@st.composite
def rows(draw: st.DrawFn, max_terms: int = 8) -> torch.Tensor:
    """Some terms (float32, terms by size) of few elements."""
    terms, size = draw(st.integers(1, max_terms)), draw(st.integers(1, 5))
    numbers = draw(st.lists(NUMBERS, min_size=terms * size, max_size=terms * size))
    return torch.tensor(numbers, dtype=torch.float32).reshape(terms, size)


def units(number: float) -> int:
    """A float32 in units of 2**-149, of which every one of them is a multiple."""
    numerator, denominator = number.as_integer_ratio()
    return numerator * ((1 << 149) // denominator)


def oracle(column: Sequence[float]) -> tuple[int, int]:
    """One element's sum and place by the definition, with Python's integers."""
    exponents = [max(0, abs(units(number)).bit_length() - 23) for number in column]
    place = max(exponents) // 16
    # The last digit is worth 2**(16 * place - 159).
    terms = [(abs(units(number)) << 10 >> 16 * place) * (1 if number > 0 else -1) for number in column]
    return sum(terms), place


def expected(terms: torch.Tensor) -> tuple[list[int], list[int]]:
    found = [oracle(column) for column in terms.T.tolist()]
    return [integer for integer, _ in found], [place for _, place in found]


def agree(sums: Sequence[ExactSum], size: int) -> torch.Tensor:
    """The places of a sum over groups, to which all of them move."""
    places = torch.zeros(len(sums), size, dtype=torch.uint8)
    for each, row in zip(sums, places, strict=True):
        each.places(out=row)
    highest = places.amax(dim=0)
    for each in sums:
        each.raise_places(highest)
    return highest


def total(sums: Sequence[ExactSum], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a sum over groups makes of them: integers and places."""
    places = agree(sums, size)
    integers = torch.zeros(size, dtype=torch.int64)
    written = torch.empty(size, dtype=torch.int64)
    for each in sums:
        each.write(written)
        integers += written
    return integers, places


def sum_of(terms: torch.Tensor, order: Sequence[int], groups: int = 1) -> tuple[list[int], list[int]]:
    sums = [ExactSum(terms.shape[1]) for _ in range(groups)]
    for turn, index in enumerate(order):
        sums[turn % groups].add(terms[index])
    integers, places = total(sums, terms.shape[1])
    return integers.tolist(), places.tolist()


def value_of(integer: int, place: int) -> Fraction:
    return integer * Fraction(2) ** (16 * place - 159)


def mean_of(terms: torch.Tensor, divisor: int = 1) -> torch.Tensor:
    one = ExactSum(terms.shape[1])
    for term in terms:
        one.add(term)
    return mean_in_place(*total([one], terms.shape[1]), divisor)


@settings(deadline=None)
@given(terms=rows(), data=st.data())
def test_any_order_grouping_and_number_of_failed_tries_give_what_the_definition_says(
    terms: torch.Tensor, data: st.DataObject
) -> None:
    size = terms.shape[1]
    sums = [ExactSum(size) for _ in range(data.draw(st.integers(1, 4)))]
    pick = st.sampled_from(sums)
    for index in data.draw(st.permutations(range(len(terms)))):
        data.draw(pick).add(terms[index])
        if data.draw(st.booleans()):  # some meet and raise their windows, then the reduce fails
            agree([one for one in sums if data.draw(st.booleans())] or sums, size)
    integers, places = total(sums, size)
    assert (integers.tolist(), places.tolist()) == expected(terms)


def wide_rows(terms: int, size: int) -> torch.Tensor:
    """Random terms whose elements are anywhere from 2**-149 to 2**127."""
    source = torch.Generator().manual_seed(terms)
    mantissas = torch.rand(terms, size, generator=source, dtype=torch.float64) + 1
    powers = torch.randint(-149, 128, (terms, size), generator=source).double()
    signs = torch.randint(0, 2, (terms, size), generator=source).double() * 2 - 1
    return torch.nan_to_num(signs * mantissas * 2**powers, posinf=LARGEST, neginf=-LARGEST).float()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 33])
def test_chunks_meet_without_a_gap(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sum, "_CHUNK", 16)
    terms = wide_rows(5, size)
    assert sum_of(terms, [3, 0, 4, 1, 2], groups=2) == expected(terms)
    assert mean_of(terms).shape == (size,)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sizes_around_that_of_a_chunk(more: int) -> None:
    size = exact_sum._CHUNK + more
    terms = wide_rows(4, size)
    in_order, shuffled = sum_of(terms, range(4)), sum_of(terms, [2, 0, 3, 1], groups=3)
    assert in_order == shuffled
    for index in (0, 1, size // 2, size - 2, size - 1):
        assert (in_order[0][index], in_order[1][index]) == oracle(terms[:, index].tolist())


def test_a_term_is_not_changed_and_a_cleared_sum_is_like_a_new_one() -> None:
    terms = wide_rows(4, 50)
    before = terms.clone()
    one = ExactSum(50)
    for term in terms:
        one.add(term)
    assert torch.equal(terms, before)
    one.clear()
    assert total([one], 50)[0].tolist() == [0] * 50
    assert total([one], 50)[1].tolist() == [0] * 50
    one.add(terms[2])
    integers, places = total([one], 50)
    assert (integers.tolist(), places.tolist()) == expected(terms[2:3])


def test_a_sum_of_no_terms_adds_nothing_however_high_its_windows() -> None:
    terms = wide_rows(3, 40)
    for groups in (4, 5, 8):
        assert sum_of(terms, range(3), groups=groups) == expected(terms)


def spoil_last_digit(chunk: exact_sum._Chunk, term: torch.Tensor) -> None:
    """Add as it should be, but for the last digit, which is rounded to nearest."""
    power = 2.0 ** (127 - 16 * chunk._places.double())
    rest = term.double() * power
    for digit in chunk._digits[:-1]:
        digit.add_(rest.trunc().int())
        rest = rest.frac() * 2.0**16
    chunk._digits[-1].add_(rest.round().int())


def spoil_moves(chunk: exact_sum._Chunk, places: torch.Tensor) -> None:
    """Move windows, but leave the digits where they were."""
    torch.maximum(chunk._places, places, out=chunk._places)


@pytest.mark.parametrize(("method", "spoilt"), [("_add_digits", spoil_last_digit), ("raise_to", spoil_moves)])
def test_these_tests_would_notice(
    method: str, spoilt: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = wide_rows(6, 200)
    assert sum_of(terms, range(6)) == sum_of(terms, range(5, -1, -1))
    monkeypatch.setattr(exact_sum._Chunk, method, spoilt)
    assert sum_of(terms, range(6)) != sum_of(terms, range(5, -1, -1))


@pytest.mark.parametrize("move_first", [True, False])
def test_the_largest_digits_never_wrap(move_first: bool) -> None:
    """MAX_TERMS terms, in which each digit in turn is 2**16 - 1; windows move before or after them."""
    full = (2.0 - 2.0**-23) * 2.0**16
    positive = torch.tensor([full, full * 2.0**-8, full * 2.0**-16, full * 2.0**-24, LARGEST])
    often, once = torch.cat([positive, -positive]), torch.tensor([2.0, 2.0, 2.0, 2.0, 0.0] * 2)
    one = ExactSum(len(often))
    if move_first:
        one.add(once)
    for _ in range(MAX_TERMS - 1):
        one.add(often)
    if not move_first:
        one.add(once)
    integers, places = total([one], len(often))
    found = list(zip(integers.tolist(), places.tolist(), strict=True))
    columns = zip(often.tolist(), once.tolist(), strict=True)
    assert found == [oracle([number] * (MAX_TERMS - 1) + [other]) for number, other in columns]


def test_a_step_of_as_many_rounds_as_there_can_be_fits() -> None:
    assert MAX_ROUNDS <= MAX_TERMS


@settings(deadline=None)
@given(terms=rows())
def test_less_than_a_2_to_the_32nd_of_the_largest_term_is_lost_per_smaller_term(terms: torch.Tensor) -> None:
    integers, places = sum_of(terms, range(len(terms)))
    for column, integer, place in zip(terms.T.tolist(), integers, places, strict=True):
        exact = sum(map(Fraction, column), Fraction())
        largest = max(map(abs, column))
        cut = [number for number in column if abs(number) < largest / 512]
        error = abs(value_of(integer, place) - exact)
        assert error <= len(cut) * Fraction(largest) / 2**32
        assert error == 0 or cut


@settings(deadline=None)
@given(terms=rows(), divisor=st.integers(1, 4096))
def test_a_mean_is_rounded_only_at_the_end(terms: torch.Tensor, divisor: int) -> None:
    integers, places = sum_of(terms, range(len(terms)))
    for value, integer, place in zip(mean_of(terms, divisor).tolist(), integers, places, strict=True):
        exact = value_of(integer, place) / divisor
        if abs(exact) >= 2**128 - 2**103:
            assert math.isinf(value)
            continue
        # Half a unit of the last bit of a float32, and a little for the roundings in float64.
        ulp = Fraction(2) ** max(-149, math.floor(math.log2(abs(exact))) - 23) if exact else Fraction(0)
        assert abs(Fraction(value) - exact) <= ulp / 2 * (1 + Fraction(2) ** -28)
        assert integer != 0 or math.copysign(1.0, value) == 1.0


FAMILIES = ["alike", "all equal", "one large", "wide", "denormal", "bfloat16", "float16", "cancelling"]


def family(name: str, terms: int, size: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(len(name) + terms)
    normal = torch.randn(terms, size, generator=source)
    match name:
        case "all equal":
            return normal[:1].expand(terms, size).contiguous()
        case "one large":
            normal[terms // 2] *= 1e5
        case "wide":
            return wide_rows(terms, size) / terms
        case "denormal":
            return normal * 2.0**-140
        case "bfloat16" | "float16":
            return normal.to(getattr(torch, name)).float()
        case "cancelling":
            half = terms // 2
            normal[half : 2 * half] = -normal[:half] * (1 + 1e-3 * normal[half : 2 * half])
    return normal


@pytest.mark.parametrize("terms", [2, 6, 64])
@pytest.mark.parametrize("name", FAMILIES)
def test_it_errs_no_more_than_float_sums_in_random_order(name: str, terms: int) -> None:
    """Up to the rounding of the result, which a float sum has too.

    For each element against the worst of a few orders, over all against the mean square of each.
    """
    size, source = 200, torch.Generator().manual_seed(terms)
    numbers = family(name, terms, size)
    exact = [sum(map(Fraction, column), Fraction()) for column in numbers.T.tolist()]
    ours = errors([value_of(*found) for found in zip(*sum_of(numbers, range(terms)), strict=True)], exact)
    worst = [0.0] * size
    for _ in range(8):
        float_sum = torch.zeros(size)
        for index in torch.randperm(terms, generator=source).tolist():
            float_sum += numbers[index]
        theirs = errors(list(map(Fraction, float_sum.tolist())), exact)
        assert math.hypot(*ours) <= math.hypot(*theirs)
        worst = list(map(max, worst, theirs))
    rounding = [abs(float(number)) * 2.0**-24 for number in exact]
    assert all(mine <= other + half for mine, other, half in zip(ours, worst, rounding, strict=True))


def errors(found: Sequence[Fraction], exact: Sequence[Fraction]) -> list[float]:
    return [abs(float(one - other)) for one, other in zip(found, exact, strict=True)]


def test_what_cancels_leaves_what_is_not_cut() -> None:
    """The limit: a float sum in a lucky order keeps what is far smaller than a term that cancels."""
    column = [1.0, 2.0**-30, 2.0**-60, -1.0]
    terms = torch.tensor(column).unsqueeze(1)
    assert mean_of(terms).tolist() == [2.0**-30]
    assert (terms[0] + terms[3] + terms[1] + terms[2]).item() == 2.0**-30
    assert (terms[0] + terms[1] + terms[2] + terms[3]).item() == 0.0


def test_memory_is_as_documented() -> None:
    one = ExactSum(1000)
    assert one.bytes == 1000 * BYTES_PER_ELEMENT == one._places.nbytes + one._digits.nbytes
