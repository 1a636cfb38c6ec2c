"""What is known of saves: the newest one, its age, and failures, each counted once."""

import pytest
from machine_transcript import Transcript
from test_lighthouse_machine import check

from lighthouse.quorum import Rules
from lighthouse.saves import Saved
from lighthouse.table import Limits


def test_the_newest_save_is_kept_whoever_made_it_and_said_once() -> None:
    player = check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 attach 1a
          => 1a starts: FRESH, step 0
        1.0 saved 0a 10 1
          => job_saved group 0
        2.0 saved 1a 20 1
          => job_saved group 1
        3.0 saved 0a 10 1
        4.0 saved 1a 20 1
        5.0 saved 0a 12 3
          => job_saved group 0
        """
    )
    newest = player.machine.saves.newest
    assert newest is not None
    assert (newest.step, newest.quorum_id) == (12, 3), "ids rise, also when the job went back to a save"
    assert player.machine.saves.age_s(7.0) == 2.0


def test_the_age_counts_from_when_it_was_complete_not_from_when_it_was_said() -> None:
    player = Transcript(Rules())
    assert player.machine.saves.age_s(0.0) is None
    player.play("100.0 attach 0a\n100.0 saved 0a 10 1 30")
    assert player.machine.saves.age_s(101.0) == 31.0


def test_a_failure_is_counted_once_however_often_it_is_said() -> None:
    player = check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        1.0 failed 0a 10
          => save_failed group 0 no space
        1.1 failed 0a 20
          => save_failed group 0 no space
        2.0 attach 0a
          => 0a starts: FRESH, step 0
          => stream of 0a closed: reattached
        2.0 failed 0a 10
        2.0 failed 0a 20
        3.0 attach 0b
          => 0b starts: FRESH, step 0
          => told 0a: SUPERSEDED: a newer incarnation of group 0 is here
          => stream of 0a closed: superseded
          => replica_gone group 0 superseded
        3.0 failed 0b 10
          => save_failed group 0 no space
        """
    )
    assert dict(player.machine.saves.failures) == {0: 3}


def test_who_is_on_no_stream_or_has_left_is_not_heard() -> None:
    player = Transcript(Rules())
    player.play("0.0 attach 0a\n0.1 goodbye 0a 0\n0.2 saved 0a 10 1\n0.2 failed 0a 10")
    assert player.machine.saves.newest is None
    assert not player.machine.saves.failures


def test_invented_groups_leave_memory_bounded() -> None:
    player = Transcript(Rules(), limits=Limits(max_replicas=4))
    for group in range(20):
        player.play(
            f"{10 * group}.0 attach {group}a\n{10 * group}.0 failed {group}a 1\n{10 * group}.1 cut {group}a"
        )
    assert list(player.machine.saves.failures) == [16, 17, 18, 19]


@pytest.mark.parametrize(
    "wrong", [{"step": -1}, {"bytes": 2**62}, {"seconds": float("inf")}, {"age_s": float("nan")}]
)
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    right: dict[str, float] = {"step": 1, "quorum_id": 1, "bytes": 1, "seconds": 1.0}
    Saved(**right)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="malformed Saved"):
        Saved(**(right | wrong))  # type: ignore[arg-type]


def test_where_saves_are_made_the_time_without_one_is_known() -> None:
    saves = Transcript(Rules()).machine.saves
    assert saves.unsaved_s(9.0) is None, "this job makes none"
    saves.expect(10.0)
    saves.expect(50.0)
    assert saves.unsaved_s(60.0) == 50.0
    assert saves.age_s(60.0) is None
    player = Transcript(Rules())
    player.machine.saves.expect(0.0)
    player.play("100.0 attach 0a\n100.0 saved 0a 10 1 30")
    assert player.machine.saves.unsaved_s(101.0) == 31.0
