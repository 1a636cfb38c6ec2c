"""Attempts that are over: said once, remembered for late comers, and bounded."""

from lighthouse.effects import Happening, Note, Tell
from lighthouse.ended import EndedAttempts, over_notice
from lighthouse.model import parse_replica_id
from lighthouse.slot import Line, Slot


def slot(*streams: int) -> Slot:
    lines = {rank: Line(stream=stream) for rank, stream in enumerate(streams)}
    return Slot(id=parse_replica_id("job/0:a"), lines=lines)


def test_it_is_said_once_to_every_rank() -> None:
    ended = EndedAttempts("job")
    tell, note = ended.add(7, "why", [slot(1, 2), slot(), slot(3)])
    assert tell == Tell(streams=(1, 2, 3), notice=over_notice(7, "why"))
    assert isinstance(note, Note)
    assert (note.happening, note.fields["cause"]) == (Happening.ATTEMPT_OVER, "why")
    assert ended.add(7, "again", [slot(1)]) == []
    assert 7 in ended
    assert ended.count == 1


def test_an_attempt_of_which_nobody_can_be_told_is_over_all_the_same() -> None:
    ended = EndedAttempts("job")
    assert ended.add(7, "why", [slot()]) == []
    assert ended.since(0) == [over_notice(7, "why")]


def test_late_comers_hear_of_later_ones_in_order() -> None:
    ended = EndedAttempts("job")
    for number in (5, 3, 4):
        ended.add(number, str(number), [])
    assert [notice.quorum_id for notice in ended.since(4)] == [4, 5]


def test_the_oldest_are_forgotten() -> None:
    ended = EndedAttempts("job")
    for number in range(1000):
        ended.add(number, "", [])
    assert len(ended.since(0)) == 16
    assert 999 in ended
    assert 0 not in ended
