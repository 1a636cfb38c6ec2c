"""One try at a step: what is run, recorded, voted and applied, with the neighbours of the step replaced."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lighthouse.client import Phase
from replica.attempt import Attempt, MicroBatch, as_signed
from replica.averaging import FloatGradientSum
from replica.bridge.manager import Start
from replica.bridge.transport import Heal, Received
from replica.errors import UserError
from replica.ledger import EventKind, Outcome, Reason
from replica.position import sample_indices
from replica.rng import seeded
from replica.round_clock import RoundClock
from replica.rounds import Peer, deal
from replica.stopwatch import Stopwatch
from replica.updater import Updater

ROUNDS = 4
STEP = 5


@dataclass
class FakeGroup:
    """What an attempt asks of its group: one rank of two, with a real sum and a real update."""

    sum_in_place: Callable[[torch.Tensor], None] = lambda buffer: None
    willing: bool = True
    group: int = 0
    ended: list[Reason] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    votes: list[bool] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    abandoned: list[tuple[int, str]] = field(default_factory=list)
    over: str | None = None
    sibling: tuple[int, ...] = (False, -7, False)
    sees: list[tuple[int, int]] = field(default_factory=list)
    rank: int = 1
    world_size: int = 2

    def __post_init__(self) -> None:
        self.stopwatch = Stopwatch()
        self.round_clock = RoundClock()
        self.weight = nn.Parameter(torch.zeros(2))
        self.config = SimpleNamespace(group=self.group, seed=11, micro_batches=ROUNDS * self.world_size)
        self.sum = FloatGradientSum({"weight": self.weight}, ROUNDS)
        self.updater = Updater(
            parameters={"weight": self.weight},
            optimizer=torch.optim.SGD([self.weight], lr=1.0),
            gradients=self.sum,
            learning_rate=None,
            clip_norm=None,
        )
        self.bridge = SimpleNamespace(
            process_group=SimpleNamespace(sum_in_place=self.sum_in_place), vote=self.vote
        )
        self.ranks = SimpleNamespace(
            share=lambda values: [self.sibling[: len(values)], tuple(values)],
            mean=lambda value: value + 100.0,
        )
        self.buffers = SimpleNamespace(check=lambda: None)
        self.boundaries: list[tuple[Any, ...]] = []
        self.saves = SimpleNamespace(after_commit=lambda *boundary: self.boundaries.append(boundary))
        self.notices = SimpleNamespace(over=lambda quorum_id: self.over)
        self.stream = SimpleNamespace(
            progress=lambda step, phase: None, abandon=lambda *told: self.abandoned.append(told)
        )
        self.record = SimpleNamespace(
            event=lambda kind, **values: self.events.append({"kind": kind, **values}),
            group_event=lambda kind, **values: self.events.append({"kind": kind, **values}),
            attempt=lambda **values: self.attempts.append(values),
        )

    def vote(self, willing: bool) -> bool:
        self.votes.append(willing)
        return willing and self.willing

    def note_data(self, count: int, dataset_size: int) -> None:
        self.sees.append((count, dataset_size))

    def held_rounds(self) -> tuple[tuple[int, int], ...]:
        return tuple((index, self.group) for index in sorted(self.sum.held))

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def attempt_ended(self, reason: Reason) -> None:
        self.ended.append(reason)

    def digest_after(self, step: int) -> str:
        return f"digest-{step}"

    def attempt(self, *, others: tuple[int, ...] = (), healed_from: int | None = None) -> Attempt:
        """A try at STEP by this group and `others`, who hold the state too."""
        members = (self.group, *others)
        heal = Heal()
        if healed_from is not None:
            heal.received = Received(step=STEP, groups=(healed_from,), bytes=1, seconds=1.0)
        start = Start(
            quorum_id=9,
            changed=True,
            peers=tuple(Peer(group=each, step=STEP) for each in members),
            configured=True,
            error=None,
            stash=None if healed_from is None else {},
            heal=heal,
        )
        peers = [
            Peer(group=each, step=STEP, held=self.sum.held if each == self.group else frozenset())
            for each in members
        ]
        plan = deal(step=STEP, quorum_id=9, rounds=ROUNDS, members=peers)
        return Attempt(cast(Any, self), start, plan)

    def walk(self, attempt: Attempt, gradient: float = 1.0, loss: float = 0.5) -> list[MicroBatch]:
        done = []
        for micro_batch in attempt.micro_batches():
            attempt.backward((self.weight * gradient).sum() + loss, torch.tensor([micro_batch.index]))
            done.append(micro_batch)
        return done


def test_a_committed_attempt_applies_the_mean_and_writes_it_all_down() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    group.walk(attempt, gradient=3.0)
    assert attempt.commit()
    assert attempt.ended
    assert (attempt.loss, attempt.groups) == (100.5, (0,))
    assert group.weight.tolist() == [-3.0, -3.0]
    assert (group.votes, group.ended) == ([True], [Reason.NONE])
    (line,) = group.attempts
    assert (line["step"], line["quorum_id"], line["outcome"]) == (STEP, 9, Outcome.COMMITTED)
    assert line["participants"] == (0,)
    assert line["rounds"] == ((0, 0), (1, 0), (2, 0), (3, 0))
    assert (line["loss"], line["lr"]) == (100.5, 1.0)
    assert line["grad_norm"] == pytest.approx(math.hypot(3.0, 3.0))
    assert (line["digest"], line["healed_from"]) == (f"digest-{STEP}", None)
    assert line["seconds"].compute > 0


def test_a_rank_runs_its_micro_batch_of_each_round_dealt_to_its_group() -> None:
    group = FakeGroup()
    attempt = group.attempt(others=(3,))
    assert [each.index for each in group.walk(attempt)] == [0 * 2 + 1, 2 * 2 + 1]
    assert [event["round"] for event in group.events] == [0, 2]


def test_committed_rounds_are_told_with_the_group_that_ran_each() -> None:
    group = FakeGroup(sum_in_place=complete)
    attempt = group.attempt(others=(3,), healed_from=3)
    group.walk(attempt)
    assert attempt.commit()
    assert group.attempts[0]["rounds"] == ((0, 0), (1, 3), (2, 0), (3, 3))
    assert group.attempts[0]["participants"] == (0, 3)
    assert group.attempts[0]["healed_from"] == (3,)
    assert group.boundaries == [(9, (0, 3, 0, 3), f"digest-{STEP}")]


def complete(buffer: torch.Tensor) -> None:
    """As if the others had run every round that is not in the buffer."""
    buffer[-2 * ROUNDS : -ROUNDS] = 1.0


def fail(buffer: torch.Tensor) -> None:
    raise RuntimeError("peer is gone")


@pytest.mark.parametrize(
    ("sum_in_place", "willing", "reason", "vote"),
    [
        (fail, True, Reason.REDUCE_FAILED, False),
        (lambda buffer: None, True, Reason.ROUNDS_MISSING, False),
        (complete, False, Reason.VOTED_DOWN, True),
    ],
)
def test_an_attempt_without_a_commit_changes_nothing_keeps_its_rounds_and_says_why(
    sum_in_place: Callable[[torch.Tensor], None], willing: bool, reason: Reason, vote: bool
) -> None:
    group = FakeGroup(sum_in_place=sum_in_place, willing=willing)
    attempt = group.attempt(others=(3,))
    group.walk(attempt)
    assert not attempt.commit()
    assert (attempt.loss, attempt.groups) == (None, (0, 3))
    assert group.weight.tolist() == [0.0, 0.0]
    assert (group.votes, group.ended) == ([vote], [reason])
    (line,) = group.attempts
    assert (line["outcome"], line["reason"]) == (Outcome.RETRIED, reason)
    assert line["rounds"] == ((0, 0), (2, 0))
    assert group.sum.held == {0, 2}
    assert group.boundaries == []


def test_the_next_attempt_runs_only_the_rounds_that_are_missing() -> None:
    group = FakeGroup(sum_in_place=fail)
    attempt = group.attempt(others=(3,))
    group.walk(attempt, gradient=3.0)
    assert not attempt.commit()
    group.bridge.process_group.sum_in_place = lambda buffer: None
    again = group.attempt()
    assert [each.index for each in group.walk(again, gradient=3.0)] == [1 * 2 + 1, 3 * 2 + 1]
    assert again.commit()
    assert group.weight.tolist() == [-3.0, -3.0]
    assert group.attempts[-1]["rounds"] == ((0, 0), (1, 0), (2, 0), (3, 0))
    assert group.sum.held == frozenset()


def test_rounds_that_are_not_finite_are_discarded_and_computed_again() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    group.walk(attempt, loss=math.nan)
    assert not attempt.commit()
    (line,) = group.attempts
    assert (line["outcome"], line["reason"]) == (Outcome.DISCARDED, Reason.NON_FINITE)
    assert line["rounds"] == ((0, 0), (1, 0), (2, 0), (3, 0))
    assert len(group.walk(group.attempt())) == ROUNDS


def test_what_a_sibling_finds_not_finite_is_discarded_on_this_rank_too() -> None:
    group = FakeGroup(willing=False)
    attempt = group.attempt()
    group.walk(attempt)
    group.sibling = (True,)
    assert not attempt.commit()
    assert group.ended == [Reason.NON_FINITE]
    assert group.sum.held == frozenset()


def test_a_loss_that_is_not_finite_is_told_with_micro_batch_group_and_rank() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    for micro_batch in attempt.micro_batches():
        bad = micro_batch.index == 5
        attempt.backward(group.weight.sum() + (math.inf if bad else 0.0))
    assert not attempt.commit()
    assert group.warnings == [
        f"step {STEP}: the loss (inf) in micro-batch 5 of group 0, rank 1, is not finite"
    ]
    told = group.events[-1]
    assert (told["kind"], told["owner"], told["micro_batch"]) == (EventKind.NON_FINITE, 0, 5)


def test_a_gradient_that_is_not_finite_is_told_though_the_loss_is() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    for micro_batch in attempt.micro_batches():
        attempt.backward((group.weight * (math.inf if micro_batch.index == 3 else 1.0)).sum().nan_to_num(0.0))
        assert group.weight.grad is not None
        if micro_batch.index == 3:
            group.weight.grad.fill_(math.inf)
    assert not attempt.commit()
    assert group.warnings == [f"step {STEP}: the gradient in micro-batch 3 of group 0, rank 1, is not finite"]


def test_a_group_without_rounds_commits_what_the_others_ran() -> None:
    group = FakeGroup(group=8, sum_in_place=complete)
    attempt = group.attempt(others=(0, 1, 2, 3))
    assert group.walk(attempt) == []
    assert attempt.commit()


def test_each_round_is_recorded_with_the_hash_over_the_inputs_of_all_ranks() -> None:
    group = FakeGroup()
    group.walk(group.attempt())
    (first, *rest) = group.events
    mine = xxhash.xxh64_intdigest(torch.tensor([1]).numpy().tobytes())
    expected = (-7).to_bytes(8, "little", signed=True) + mine.to_bytes(8, "little")
    assert first == {
        "kind": EventKind.ROUND_DONE,
        "step": STEP,
        "quorum_id": 9,
        "round": 0,
        "input_xxh64": xxhash.xxh64_hexdigest(expected),
    }
    assert len({event["input_xxh64"] for event in group.events}) == ROUNDS
    assert len(rest) == ROUNDS - 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 2)])
def test_inputs_of_any_type_and_shape_are_hashed(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    group = FakeGroup()
    attempt = group.attempt()
    for _ in attempt.micro_batches():
        attempt.backward(group.weight.sum(), torch.zeros(shape, dtype=dtype))
    assert all(event["input_xxh64"] for event in group.events)


def test_without_inputs_no_hash_is_claimed() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    for _ in attempt.micro_batches():
        attempt.backward(group.weight.sum())
    assert [event["input_xxh64"] for event in group.events] == [None] * ROUNDS


def test_random_numbers_depend_on_the_micro_batch_alone_and_the_outer_sequence_goes_on() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    torch.manual_seed(1)
    for micro_batch in attempt.micro_batches():
        drawn = float(torch.rand(()))
        with seeded(11, STEP, micro_batch.index):
            assert float(torch.rand(())) == drawn
        attempt.backward(group.weight.sum())
    after = float(torch.rand(()))
    torch.manual_seed(1)
    assert float(torch.rand(())) == after


def test_samples_of_a_micro_batch_are_those_of_its_place_in_the_job() -> None:
    micro_batch = MicroBatch(seed=11, step=STEP, index=3, micro_batches=8)
    assert micro_batch.samples(4, 1000) == sample_indices(
        seed=11, step=STEP, micro_batch=3, micro_batches=8, samples_per_micro_batch=4, dataset_size=1000
    )


def test_what_is_read_of_the_data_is_noted() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    for micro_batch in attempt.micro_batches():
        micro_batch.samples(4, 1000)
        attempt.backward(group.weight.sum())
    assert set(group.sees) == {(4, 1000)}


def test_a_micro_batch_without_backward_is_a_bug_of_the_script() -> None:
    group = FakeGroup()
    with pytest.raises(UserError, match="must be called once for each micro-batch"):
        for _ in group.attempt().micro_batches():
            pass


def test_a_second_backward_is_a_bug_of_the_script() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    micro_batches = attempt.micro_batches()
    next(micro_batches)
    attempt.backward(group.weight.sum())
    with pytest.raises(UserError, match="was called twice for one micro-batch"):
        attempt.backward(group.weight.sum())
    micro_batches.close()


def test_a_second_commit_is_a_bug_of_the_script() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    group.walk(attempt)
    attempt.commit()
    with pytest.raises(UserError, match="called twice"):
        attempt.commit()


@given(st.integers(0, 2**64 - 1))
def test_a_hash_survives_the_way_through_a_signed_tensor(value: int) -> None:
    signed = torch.tensor([as_signed(value)], dtype=torch.int64)
    assert int(signed[0]).to_bytes(8, "little", signed=True) == value.to_bytes(8, "little")


def test_an_attempt_that_is_over_is_left_at_the_next_round_boundary() -> None:
    group = FakeGroup(sum_in_place=fail)
    attempt = group.attempt()
    for done, _ in enumerate(attempt.micro_batches()):
        attempt.backward(group.weight.sum())
        group.over = "group 3 died" if done == 1 else None
    assert done == 1
    assert not attempt.commit()
    assert group.votes == [False]
    assert group.ended == [Reason.ATTEMPT_OVER]
    assert group.attempts[0]["outcome"] is Outcome.RETRIED
    assert group.sum.held == {0, 1}
    # Everybody has been told already.
    assert group.abandoned == []


def test_a_failure_that_others_may_not_see_is_told_to_them() -> None:
    group = FakeGroup(sum_in_place=fail)
    attempt = group.attempt()
    group.walk(attempt)
    assert not attempt.commit()
    assert group.ended == [Reason.REDUCE_FAILED]
    assert [quorum_id for quorum_id, _ in group.abandoned] == [9]


def test_a_loop_that_leaves_micro_batches_out_is_a_bug_of_the_script() -> None:
    group = FakeGroup()
    attempt = group.attempt()
    for _ in attempt.micro_batches():
        attempt.backward(group.weight.sum())
        break
    with pytest.raises(UserError, match="with 4 micro-batches of this rank still to run"):
        attempt.commit()


def test_the_lighthouse_is_told_that_the_sum_is_done_with() -> None:
    group = FakeGroup()
    told: list[Phase] = []
    group.stream.progress = lambda step, phase: told.append(phase)
    group.walk(attempt := group.attempt())
    attempt.commit()
    assert told == [Phase.REDUCE, Phase.COMMIT]
