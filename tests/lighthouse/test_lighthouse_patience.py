"""Waiting is worth one line for each reason, when it takes long."""

from lighthouse.effects import Note
from lighthouse.patience import Patience
from lighthouse.quorum import Reason, Waiting


def noted(notes: list[Note]) -> list[object]:
    return [note.fields["reason"] for note in notes]


def test_once_for_each_reason_and_only_when_it_takes_long() -> None:
    patience = Patience(job="job", note_after_s=1.0)
    patience.wait(Waiting(reason=Reason.STRAGGLERS), 10.0)
    assert patience.note(10.9) == []
    assert noted(patience.note(11.0)) == ["stragglers"]
    assert patience.note(12.0) == []
    patience.wait(Waiting(reason=Reason.NO_MAJORITY), 13.0)
    assert noted(patience.note(13.0)) == ["no_majority"]


def test_a_quorum_or_nobody_who_asks_ends_it() -> None:
    patience = Patience(job="job", note_after_s=1.0)
    patience.wait(Waiting(reason=Reason.STRAGGLERS), 0.0)
    patience.end()
    assert patience.waiting.reason is Reason.NO_ASKS
    assert patience.note(100.0) == []
    patience.wait(Waiting(reason=Reason.STRAGGLERS), 100.0)
    patience.wait(Waiting(reason=Reason.NO_ASKS), 101.0)
    assert patience.note(200.0) == []
