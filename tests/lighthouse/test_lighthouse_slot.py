"""One replica's slot: its place in the queue and what the status calls it."""

import pytest

from lighthouse.model import Member, Phase, parse_replica_id
from lighthouse.slot import Gone, Slot, SlotState

ID = parse_replica_id("job/0:a")
MEMBER = Member(id=ID, step=4)


def test_asking_again_in_time_keeps_the_place_and_later_does_not() -> None:
    slot = Slot(id=ID)
    slot.begin_to_ask(MEMBER, 1, 10.0, keep_joined_s=5.0)
    slot.withdraw(1, 20.0)
    slot.begin_to_ask(MEMBER, 2, 24.0, keep_joined_s=5.0)
    assert slot.joined_s == 10.0
    slot.withdraw(2, 30.0)
    slot.begin_to_ask(MEMBER, 3, 36.0, keep_joined_s=5.0)
    assert slot.joined_s == 36.0


def test_an_answered_call_gives_up_its_place() -> None:
    slot = Slot(id=ID)
    slot.begin_to_ask(MEMBER, 1, 10.0, keep_joined_s=5.0)
    assert slot.take_calls() == (1,)
    slot.withdraw(1, 11.0)
    slot.begin_to_ask(MEMBER, 2, 12.0, keep_joined_s=5.0)
    assert slot.joined_s == 12.0


@pytest.mark.parametrize(
    ("rounds", "sample_s"), [(None, [6.0]), (0, []), (1, [6.0]), (3, [2.0])], ids=["untold", "0", "1", "3"]
)
def test_the_time_to_compute_is_that_of_one_round(rounds: int | None, sample_s: list[float]) -> None:
    slot = Slot(id=ID)
    slot.move(4, Phase.COMPUTE, 10.0, rounds=rounds)
    slot.move(4, Phase.REDUCE, 16.0)
    assert list(slot.computed_s) == sample_s


def test_the_next_phase_does_not_inherit_the_rounds_of_the_last() -> None:
    slot = Slot(id=ID)
    slot.move(4, Phase.COMPUTE, 10.0, rounds=3)
    slot.move(4, Phase.REDUCE, 16.0)
    slot.move(5, Phase.COMPUTE, 20.0)
    slot.move(5, Phase.REDUCE, 22.0)
    assert list(slot.computed_s) == [2.0, 2.0]


def test_an_attempt_that_ended_before_the_reduce_is_no_sample() -> None:
    slot = Slot(id=ID)
    slot.move(4, Phase.COMPUTE, 10.0, rounds=1)
    slot.move(4, Phase.QUORUM, 11.0)
    slot.move(4, Phase.REDUCE, 12.0)
    assert not slot.computed_s


@pytest.mark.parametrize("phase", Phase)
def test_an_attempt_lasts_from_the_first_round_to_the_reduce_or_the_last_save(phase: Phase) -> None:
    wanted = phase in (Phase.COMPUTE, Phase.REDUCE, Phase.SAVE)
    assert Slot(id=ID, phase=phase).is_in_attempt() is wanted
    assert not Slot(id=ID, phase=phase, calls=[1]).is_in_attempt()


@pytest.mark.parametrize("gone", Gone)
def test_the_gone_have_a_state_each(gone: Gone) -> None:
    wanted = {
        Gone.SILENT: SlotState.SILENT,
        Gone.STREAM_BROKE: SlotState.DEAD,
        Gone.SUPERSEDED: SlotState.DEAD,
        Gone.EVICTED: SlotState.EVICTED,
        Gone.LEFT: SlotState.LEFT,
        Gone.FINISHED: SlotState.FINISHED,
    }
    assert Slot(id=ID, gone=gone, calls=[1]).state(in_quorum=True) is wanted[gone]


def test_the_living_join_ask_and_train() -> None:
    assert Slot(id=ID).state(in_quorum=False) is SlotState.JOINING
    assert Slot(id=ID, calls=[1]).state(in_quorum=True) is SlotState.ASKING
    assert Slot(id=ID).state(in_quorum=True) is SlotState.TRAINING
