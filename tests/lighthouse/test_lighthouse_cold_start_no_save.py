"""A cold start where some or all find no save: who waits for whom, and when a job is lost or begins anew."""

from dataclasses import replace

import pytest
from disaster import TWO, after_disaster
from machine_transcript import Transcript
from test_lighthouse_machine import check

from lighthouse.cold_start import EmptyHanded
from lighthouse.model import JobRecord
from lighthouse.quorum import Rules
from lighthouse.table import Limits


def test_without_any_save_the_job_is_lost_once_all_expected_groups_have_looked() -> None:
    after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 propose 0b none
  => 0b: WAIT: no complete save was found, and others may find one: 1 of 2 groups have looked
50.0 propose 0b none
  => 0b: WAIT: no complete save was found, and others may find one: 1 of 2 groups have looked
50.1 attach 1b
  => 1b starts: RESTORE, step 40
50.1 propose 1b none
  => 1b: LOST: step 40 is on record, nobody has it, and no complete save was found
50.2 propose 0b none
  => 0b: LOST: step 40 is on record, nobody has it, and no complete save was found
50.3 propose 1b 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => disaster_restore save-30-1
  => 1b: RESTORE: save-30-1
"""
    )


def test_where_no_number_of_groups_is_expected_others_have_the_heartbeat_timeout() -> None:
    after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 propose 0b none
  => 0b: WAIT: no complete save was found, and others may find one: 1 of any number of groups have looked
6.9 propose 0b none
  => 0b: WAIT: no complete save was found, and others may find one: 1 of any number of groups have looked
7.0 propose 0b none
  => 0b: LOST: step 40 is on record, nobody has it, and no complete save was found
""",
        Rules(),
    )


def test_the_job_is_not_lost_while_somebody_still_looks_for_a_save() -> None:
    waits = "no complete save was found, and others may find one: 1 of any number of groups have looked"
    after_disaster(
        f"""
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 attach 1b
  => 1b starts: RESTORE, step 40
2.0 propose 1b
  => 1b: LOOK: no group lives that has the state
2.0 propose 0b none
  => 0b: WAIT: {waits}
900.0 propose 0b none
  => 0b: WAIT: {waits}
900.1 cut 1b
  => replica_gone group 1 stream_broke
900.1 propose 0b none
  => 0b: LOST: step 40 is on record, nobody has it, and no complete save was found
""",
        Rules(join_timeout_s=1000.0),
    )


def test_who_looked_long_ago_does_not_count() -> None:
    empty_handed = EmptyHanded(TWO, 5.0)
    assert not empty_handed.say(0, 0.0)
    assert not empty_handed.say(1, 60.1)
    assert empty_handed.say(0, 60.2)


def test_a_group_that_never_comes_is_waited_for_only_so_long() -> None:
    empty_handed = EmptyHanded(TWO, 5.0)
    assert [empty_handed.say(0, float(now_s)) for now_s in (0, 30, 59, 60)] == [False, False, False, True]


def test_saves_from_before_the_job_was_forgotten_do_not_come_back() -> None:
    player = Transcript(Rules())
    player.disk = JobRecord(job="job", quorum_id=7, floor=7)
    player.play("0.0 restart")
    player.play("5.0 attach 0a\n5.1 propose 0a 30 7")
    why = "save-30-7 is from before the job was forgotten, up to quorum 7"
    assert player.lines[-1] == f"  => 0a: FRESH: no step is on record and {why}"
    player.play("5.2 propose 0a 30 8")
    assert player.lines[-1] == "  => 0a: RESTORE: save-30-8"
    player.play("5.3 ask 0a 30")
    assert player.lines[-1] == "  => quorum 9 [0] step 30, to 0a"
    assert player.disk.floor == 7


def test_a_job_whose_record_is_lost_goes_on_from_its_save() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.1 propose 0a 30 12
          => on disk: quorum 12, step 30, all load save-30-12
          => disaster_restore save-30-12
          => 0a: RESTORE: save-30-12
        0.2 ask 0a 30
          => on disk: quorum 13, step 30
          => quorum 13 [0] step 30, to 0a
        """
    )


def test_a_job_that_trained_without_a_lighthouse_goes_on_from_its_save() -> None:
    player = check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.1 propose 0a 30 0
          => on disk: quorum 1, step 30, all load save-30-0
          => disaster_restore save-30-0
          => 0a: RESTORE: save-30-0
        0.2 ask 0a 30
          => on disk: quorum 2, step 30
          => quorum 2 [0] step 30, to 0a
        """
    )
    assert player.disk.quorum_id > 0, "once it is forgotten, what it was saved with is known to be older"


def test_a_forgotten_job_is_not_taken_back_to_the_time_before_it_had_a_lighthouse() -> None:
    player = Transcript(Rules())
    player.disk = JobRecord(job="job", quorum_id=1, floor=1)
    player.play("0.0 restart\n5.0 attach 0a\n5.1 propose 0a 30 0")
    why = "save-30-0 is from before the job was forgotten, up to quorum 1"
    assert player.lines[-1] == f"  => 0a: FRESH: no step is on record and {why}"


def test_nobody_starts_at_step_0_while_another_looks_for_a_save() -> None:
    waits = "no complete save was found, and others may find one: 1 of any number of groups have looked"
    check(
        f"""
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 attach 1a
          => 1a starts: FRESH, step 0
        0.1 propose 1a
          => 1a: LOOK: no group lives that has the state
        0.1 propose 0a none
          => 0a: WAIT: {waits}
        4.0 beat 0a
        4.0 beat 1a
        8.0 beat 1a
        8.0 propose 0a none
          => 0a: WAIT: {waits}
        9.0 propose 1a 30 12
          => on disk: quorum 12, step 30, all load save-30-12
          => disaster_restore save-30-12
          => 1a: RESTORE: save-30-12
        9.1 propose 0a none
          => on disk: quorum 12, step 30, all load save-30-12
          => 0a: RESTORE: save-30-12
        """
    )


def test_one_that_looks_for_ever_holds_up_a_new_job_only_so_long() -> None:
    player = Transcript(Rules(), limits=Limits(look_timeout_s=20.0))
    player.play("0.0 attach 0a\n0.0 attach 1a\n0.0 propose 1a\n1.0 propose 0a none\n20.9 propose 0a none")
    assert ": WAIT: " in player.lines[-1]
    player.play("21.0 propose 0a none")
    assert player.lines[-1] == "  => 0a: FRESH: no step is on record and no complete save was found"


def test_nobody_starts_at_step_0_while_the_save_that_another_has_found_cannot_be_recorded() -> None:
    player = Transcript(Rules())
    player.play("0.0 attach 0a\n0.0 attach 1a\n0.0 propose 1a\n0.1 disk full\n0.2 propose 1a 30 12")
    assert player.lines[-1] == "  => not written"
    player.play("0.3 propose 0a none")
    assert ": WAIT: " in player.lines[-1]
    player.play("0.4 disk ok\n0.5 propose 1a 30 12\n0.6 propose 0a none")
    assert player.lines[-1] == "  => 0a: RESTORE: save-30-12"


@pytest.mark.parametrize("end", ["1.1 cut 1a", "1.1 propose 1a none"])
def test_one_that_looks_no_more_does_not_hold_up_a_new_job(end: str) -> None:
    player = Transcript(Rules())
    player.play(
        f"0.0 attach 0a\n0.0 attach 1a\n0.0 propose 1a\n1.0 propose 0a none\n{end}\n1.2 propose 0a none"
    )
    assert player.lines[-1] == "  => 0a: FRESH: no step is on record and no complete save was found"


def test_saves_that_nobody_can_load_are_not_trained_over_until_the_job_is_forgotten() -> None:
    player = check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.1 propose 0a none torn 9
          => on disk: quorum 9, step 0
          => 0a: LOST: no step is on record, but there are saves, and none of them can be loaded
        """
    )
    player.disk = replace(player.disk, floor=player.disk.quorum_id)  # what `forget` makes of it
    player.play("1.0 restart\n6.0 attach 0b\n6.1 propose 0b none torn 9")
    assert player.lines[-1] == "  => 0b: FRESH: no step is on record and no complete save was found"
    player.play("6.2 ask 0b 0")
    assert player.lines[-1] == "  => quorum 10 [0] step 0, to 0b"


@pytest.mark.parametrize(
    ("proposal", "told"),
    [
        ("none seen 9", "FRESH: no step is on record and no complete save was found"),
        ("30 4 seen 9", "RESTORE: save-30-4"),
        ("30 4 torn 9", "RESTORE: save-30-4"),
    ],
)
def test_ids_go_on_above_those_of_all_saves_that_lie_there(proposal: str, told: str) -> None:
    player = Transcript(Rules())
    player.play(f"0.0 attach 0a\n0.1 propose 0a {proposal}")
    assert "  => on disk: quorum 9, " in "\n".join(player.lines), "before anybody is told"
    assert player.lines[-1] == f"  => 0a: {told}"
    player.play(f"0.2 ask 0a {player.disk.max_step}")
    assert player.lines[-1].startswith("  => quorum 10 [0] ")


def test_no_group_is_told_to_begin_before_the_ids_of_what_lies_there_are_on_disk() -> None:
    player = Transcript(Rules())
    player.play("0.0 attach 0a\n0.1 disk full\n0.2 propose 0a none seen 9")
    assert player.lines[-1] == "  => not written"
    assert player.machine.record.quorum_id == 0
