"""The order of samples: a bijection per epoch, exactly once however steps are cut, and pinned."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replica.position import permuted, sample_indices

SEEDS = st.integers(0, 2**63 - 1)


def epoch_order(size: int, *, seed: int, epoch: int) -> list[int]:
    return [permuted(place=place, size=size, seed=seed, epoch=epoch) for place in range(size)]


def step_samples(step: int, *, seed: int, micro_batches: int, samples: int, size: int) -> list[int]:
    return [
        index
        for micro_batch in range(micro_batches)
        for index in sample_indices(
            seed=seed,
            step=step,
            micro_batch=micro_batch,
            micro_batches=micro_batches,
            samples_per_micro_batch=samples,
            dataset_size=size,
        )
    ]


def test_every_small_size_is_a_bijection() -> None:
    for size in range(1, 301):
        assert sorted(epoch_order(size, seed=size, epoch=3)) == list(range(size))


@settings(max_examples=15)
@given(size=st.integers(300, 3000), seed=SEEDS, epoch=st.integers(0, 2**40))
def test_larger_sizes_are_bijections(size: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(size, seed=seed, epoch=epoch)) == list(range(size))


@given(size=st.integers(10**6, 10**15), seed=SEEDS, data=st.data())
def test_huge_sizes_map_different_places_to_different_indices(
    size: int, seed: int, data: st.DataObject
) -> None:
    places = data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=20))
    indices = {permuted(place=place, size=size, seed=seed, epoch=0) for place in places}
    assert len(indices) == len(places)
    assert all(0 <= index < size for index in indices)


@given(size=st.integers(60, 400), seed=SEEDS)
def test_each_epoch_and_each_seed_has_its_own_order(size: int, seed: int) -> None:
    orders = [epoch_order(size, seed=seed, epoch=epoch) for epoch in range(4)]
    orders.append(epoch_order(size, seed=seed + 1, epoch=0))
    assert len({tuple(order) for order in orders}) == len(orders)
    assert list(range(size)) not in orders


def test_neighbours_are_spread_over_the_whole_range() -> None:
    size = 10_000
    order = epoch_order(size, seed=0, epoch=0)
    mean_jump = sum(abs(a - b) for a, b in pairwise(order)) / (size - 1)
    assert 0.3 * size < mean_jump < 0.37 * size  # a third, for a random order


@settings(max_examples=60)
@given(
    size=st.integers(1, 60),
    micro_batches=st.integers(1, 6),
    samples=st.integers(1, 7),
    seed=SEEDS,
)
@example(size=5, micro_batches=3, samples=4, seed=0)  # a step larger than the data set
@example(size=7, micro_batches=1, samples=20, seed=0)  # two ends of an epoch in one micro-batch
@example(size=1, micro_batches=2, samples=3, seed=0)
def test_every_epoch_holds_every_sample_once(size: int, micro_batches: int, samples: int, seed: int) -> None:
    steps = -(-3 * size // (micro_batches * samples))
    seen = [
        index
        for step in range(steps)
        for index in step_samples(step, seed=seed, micro_batches=micro_batches, samples=samples, size=size)
    ]
    for epoch in range(3):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))


@given(seed=SEEDS, size=st.integers(1, 500), step=st.integers(0, 10**9))
def test_the_cut_into_micro_batches_does_not_change_a_step(seed: int, size: int, step: int) -> None:
    cuts = [
        step_samples(step, seed=seed, micro_batches=m, samples=24 // m, size=size) for m in (1, 2, 3, 12, 24)
    ]
    assert all(cut == cuts[0] for cut in cuts)


@given(order=st.permutations(range(12)))
def test_who_asks_in_which_order_makes_no_difference(order: list[int]) -> None:
    def ask(micro_batch: int) -> tuple[int, ...]:
        return sample_indices(
            seed=9,
            step=77,
            micro_batch=micro_batch,
            micro_batches=12,
            samples_per_micro_batch=4,
            dataset_size=1000,
        )

    asked = {micro_batch: ask(micro_batch) for micro_batch in order}
    in_turn = step_samples(77, seed=9, micro_batches=12, samples=4, size=1000)
    assert [index for micro_batch in range(12) for index in asked[micro_batch]] == in_turn


# The order of samples is part of every trajectory: these values must never change.
@pytest.mark.parametrize(
    ("seed", "step", "micro_batch", "size", "expected"),
    [
        (0, 0, 0, 94676, (32088, 39625, 21588, 8212, 4230, 21023, 52929, 30815)),
        (0, 199, 11, 94676, (88494, 53449, 60905, 31119, 54576, 20155, 42763, 12547)),
        (1234567890123, 5, 7, 1000, (386, 604, 752, 475, 960, 434, 933, 613)),
        (
            9223372036854775807,
            1000000000,
            3,
            1000000000000,
            (
                781652093940,
                194709915541,
                170187780431,
                589731992142,
                301081948779,
                115042368462,
                706346921213,
                259505006534,
            ),
        ),
        (42, 3, 1, 5, (4, 2, 0, 3, 3, 1, 4, 2)),
    ],
)
def test_golden_values(seed: int, step: int, micro_batch: int, size: int, expected: tuple[int, ...]) -> None:
    indices = sample_indices(
        seed=seed,
        step=step,
        micro_batch=micro_batch,
        micro_batches=12,
        samples_per_micro_batch=8,
        dataset_size=size,
    )
    assert indices == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1},
        {"micro_batch": 12},
        {"micro_batch": -1},
        {"samples_per_micro_batch": 0},
        {"dataset_size": 0},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    numbers = {
        "seed": 0,
        "step": 0,
        "micro_batch": 0,
        "micro_batches": 12,
        "samples_per_micro_batch": 8,
        "dataset_size": 100,
    }
    with pytest.raises(ValueError, match=next(iter(wrong))):
        sample_indices(**(numbers | wrong))


@pytest.mark.parametrize("place", [-1, 10])
def test_a_place_outside_of_the_epoch_is_refused(place: int) -> None:
    with pytest.raises(ValueError, match="place"):
        permuted(place=place, size=10, seed=0, epoch=0)
