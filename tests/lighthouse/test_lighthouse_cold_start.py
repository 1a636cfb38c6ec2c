"""A start when nobody may be left from whom to heal: one decision for all, as transcripts."""

import pytest
from machine_transcript import Transcript
from test_lighthouse_machine import check

from lighthouse.cold_start import EmptyHanded
from lighthouse.model import ColdStart, JobRecord
from lighthouse.quorum import Rules
from lighthouse.table import Limits

TWO = Rules(expected_groups=2, join_timeout_s=60.0)

DISASTER = """
        0.0 attach 0a
        0.0 attach 1a
        0.0 ask 0a 40
        0.0 ask 1a 40
        1.0 cut 0a
        1.0 cut 1a
"""


def after_disaster(transcript: str, rules: Rules | None = None) -> Transcript:
    """Groups 0 and 1 were in quorum 1 at step 40 and are dead; then this."""
    start = Transcript(rules or TWO)
    start.play(DISASTER)
    return check("\n".join(start.lines) + transcript, rules or TWO)


def test_two_groups_of_a_new_job_start_at_step_0() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.1 attach 1a
          => 1a starts: FRESH, step 0
        0.2 propose 0a
          => 0a: LOOK: no group lives that has the state
        0.2 propose 1a
          => 1a: LOOK: no group lives that has the state
        0.3 propose 0a none
          => 0a: WAIT: no complete save was found, and others may find one: 1 of 2 groups have looked
        0.3 propose 1a none
          => 1a: FRESH: no step is on record and no complete save was found
        0.4 propose 0a none
          => 0a: FRESH: no step is on record and no complete save was found
        0.4 ask 0a 0
        0.4 ask 1a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0 1] step 0, to 0a 1a
        0.5 attach 2a
          => 2a starts: HEAL, step 0
        0.5 propose 2a
          => 2a: HEAL: a group that has the state lives
        """,
        TWO,
    )


def test_when_all_have_died_the_first_save_that_is_offered_is_loaded_by_all() -> None:
    player = after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 attach 1b
  => 1b starts: RESTORE, step 40
2.0 propose 0b
  => 0b: LOOK: no group lives that has the state
2.0 propose 1b
  => 1b: LOOK: no group lives that has the state
2.5 propose 0b 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => disaster_restore save-30-1
  => 0b: RESTORE: save-30-1
2.6 propose 1b 33 1
  => on disk: quorum 1, step 30, all load save-30-1
  => 1b: RESTORE: save-30-1
2.6 propose 1b 33 1
  => 1b: RESTORE: save-30-1
3.0 ask 0b 30
3.0 why
  => expected_groups: waiting for the expected groups: 1 of 2 ask, 0.0 s of 60.0 s
3.1 propose 1b
  => 1b: RESTORE: save-30-1
3.5 ask 1b 30
  => on disk: quorum 2, step 30
  => quorum 2 [0 1] step 30, to 0b 1b
3.6 attach 2a
  => 2a starts: HEAL, step 30
3.6 propose 2a
  => 2a: HEAL: a group that has the state lives
"""
    )
    assert player.disk.restore is None


def test_what_all_load_is_remembered_by_a_new_server_and_its_ids_go_on_above_those_of_the_save() -> None:
    after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 propose 0b 30 17
  => on disk: quorum 17, step 30, all load save-30-17
  => disaster_restore save-30-17
  => 0b: RESTORE: save-30-17
2.1 restart
2.1 propose 0b
  => 0b: WAIT: this group is not attached again yet
2.2 attach 0b
  => 0b starts: RESTORE, step 30
2.2 attach 1b
  => 1b starts: RESTORE, step 30
2.2 propose 1b 33 1
  => 1b: WAIT: a group that has the state may live
7.2 propose 1b 33 1
  => on disk: quorum 17, step 30, all load save-30-17
  => 1b: RESTORE: save-30-17
7.3 ask 0b 30
7.3 ask 1b 30
  => on disk: quorum 18, step 30
  => quorum 18 [0 1] step 30, to 0b 1b
"""
    )


def test_a_group_that_vanished_is_not_dead_before_the_heartbeat_timeout() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 watch 0a 1
        0.0 ask 0a 40
          => on disk: quorum 1, step 40
          => quorum 1 [0] step 40, to 0a
        0.5 attach 1b
          => 1b starts: HEAL, step 40
        2.4 propose 1b
          => 1b: HEAL: a group that has the state lives
        2.5 propose 1b
          => 1b: WAIT: a group that has the state may live
        4.9 propose 1b
          => 1b: WAIT: a group that has the state may live
        5.0 propose 1b
          => 1b: LOOK: no group lives that has the state
        """
    )


def test_a_group_that_has_stopped_beating_may_live_as_long_as_its_stream_speaks() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 ask 0a 40
          => on disk: quorum 1, step 40
          => quorum 1 [0] step 40, to 0a
        4.0 pulse 0a
        5.0 tick
          => replica_gone group 0 silent
          => told 0a: ATTEMPT_OVER 1: group 0: its heartbeats stopped
        5.1 attach 1b
          => 1b starts: HEAL, step 40
        8.9 propose 1b
          => 1b: WAIT: a group that has the state may live
        9.0 propose 1b
          => 1b: LOOK: no group lives that has the state
        """
    )


def test_a_group_whose_stream_broke_is_dead_at_once() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 ask 0a 40
          => on disk: quorum 1, step 40
          => quorum 1 [0] step 40, to 0a
        0.1 attach 1b
          => 1b starts: HEAL, step 40
        0.2 cut 0a
          => replica_gone group 0 stream_broke
        0.2 propose 1b
          => 1b: LOOK: no group lives that has the state
        """
    )


def test_a_new_server_waits_for_those_on_record_and_then_loads_no_save_if_they_live() -> None:
    after_disaster(
        """
2.0 restart
2.1 attach 2a
  => 2a starts: HEAL, step 40
2.1 propose 2a
  => 2a: WAIT: a group that has the state may live
2.2 attach 0a 41
  => 0a starts: HEAL, step 40
2.2 propose 2a
  => 2a: HEAL: a group that has the state lives
"""
    )


def test_a_new_server_looks_for_a_save_when_nobody_was_heard() -> None:
    after_disaster(
        """
2.0 restart
6.9 attach 2a
  => 2a starts: HEAL, step 40
6.9 propose 2a 30 1
  => 2a: WAIT: a group that has the state may live
7.0 propose 2a 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => disaster_restore save-30-1
  => told 2a: ATTEMPT_OVER 1: the job goes back to a save
  => 2a: RESTORE: save-30-1
"""
    )


def test_one_that_had_come_to_heal_has_nothing_to_give() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 attach 1a
          => 1a starts: FRESH, step 0
        0.0 ask 0a 40
        0.0 ask 1a 0
          => on disk: quorum 1, step 40
          => quorum 1 [0 1] step 40, to 0a 1a
        0.1 cut 0a
          => replica_gone group 0 stream_broke
          => told 1a: ATTEMPT_OVER 1: group 0: rank 0 died
        0.2 attach 0b
          => 0b starts: RESTORE, step 40
        0.2 tell 1a 40 HEAL
        0.3 propose 0b
          => 0b: HEAL: a group that has the state lives
        """
    )


def test_one_that_was_a_step_behind_when_the_others_died_goes_on_from_there() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 attach 1a
          => 1a starts: FRESH, step 0
        0.0 ask 0a 40
        0.0 ask 1a 39
          => on disk: quorum 1, step 40
          => quorum 1 [0 1] step 40, to 0a 1a
        0.1 cut 0a
          => replica_gone group 0 stream_broke
          => told 1a: ATTEMPT_OVER 1: group 0: rank 0 died
        0.2 attach 0b
          => 0b starts: HEAL, step 40
        """
    )


def test_a_save_is_chosen_anew_when_whoever_was_told_to_load_it_is_gone() -> None:
    player = after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 propose 0b 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => disaster_restore save-30-1
  => 0b: RESTORE: save-30-1
2.1 cut 0b
  => replica_gone group 0 stream_broke
2.2 attach 1b
  => 1b starts: RESTORE, step 30
  => told 1b: ATTEMPT_OVER 1: group 0: rank 0 died
2.2 propose 1b
  => 1b: LOOK: no group lives that has the state
2.3 propose 1b 20 1
  => on disk: quorum 1, step 20, all load save-20-1
  => disaster_restore save-20-1
  => 1b: RESTORE: save-20-1
2.4 attach 0b
  => 0b refused: evicted
2.4 propose 0b
  => 0b refused: evicted
2.5 restart
2.6 attach 0b
  => 0b refused: evicted
"""
    )
    assert player.disk.restore is not None
    assert [group for group, _ in player.disk.restore.told] == [1]


def test_the_same_save_again_puts_nobody_out() -> None:
    after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 propose 0b 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => disaster_restore save-30-1
  => 0b: RESTORE: save-30-1
2.1 cut 0b
  => replica_gone group 0 stream_broke
2.2 attach 1b
  => 1b starts: RESTORE, step 30
  => told 1b: ATTEMPT_OVER 1: group 0: rank 0 died
2.2 propose 1b 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => 1b: RESTORE: save-30-1
2.3 attach 0b
  => 0b starts: RESTORE, step 30
  => told 0b: ATTEMPT_OVER 1: group 0: rank 0 died
2.3 propose 0b 20 1
  => 0b: RESTORE: save-30-1
"""
    )


def test_a_survivor_that_is_ahead_of_the_save_is_welcome_and_all_heal_from_it() -> None:
    after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 propose 0b 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => disaster_restore save-30-1
  => 0b: RESTORE: save-30-1
2.1 attach 1a 40
  => 1a starts: HEAL, step 30
  => told 1a: ATTEMPT_OVER 1: group 0: rank 0 died
2.2 propose 0b
  => 0b: HEAL: a group that has the state lives
2.3 ask 1a 40
2.4 ask 0b 30
  => on disk: quorum 2, step 40
  => quorum 2 [0 1] step 40, to 0b 1a
"""
    )


def test_whoever_is_below_the_save_is_refused_as_before() -> None:
    after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 propose 0b 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => disaster_restore save-30-1
  => 0b: RESTORE: save-30-1
2.1 cut 0b
  => replica_gone group 0 stream_broke
2.2 ask 1b 29
2.2 why
  => below_record: refusing to go back to step 29: step 30 is on record, no group that has it asks
""",
        Rules(),
    )


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


def test_a_finished_job_needs_no_save() -> None:
    player = Transcript(Rules())
    player.play("0.0 attach 0a\n0.0 ask 0a 9\n0.1 goodbye 0a 10 finished\n0.2 attach 1a\n0.2 propose 1a 9 1")
    assert player.lines[-1] == "  => 1a: FINISHED: step 10 was the last"


def test_nothing_is_decided_while_the_disk_is_full() -> None:
    player = after_disaster(
        """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 disk full
2.0 propose 0b 30 1
  => not written
2.1 attach 1b
  => 1b starts: RESTORE, step 40
2.2 disk ok
2.2 propose 1b 33 1
  => on disk: quorum 1, step 33, all load save-33-1
  => disaster_restore save-33-1
  => 1b: RESTORE: save-33-1
2.3 propose 0b 30 1
  => on disk: quorum 1, step 33, all load save-33-1
  => 0b: RESTORE: save-33-1
"""
    )
    assert player.machine.record == player.disk


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        ("0.0 tick", "0a refused: unknown"),
        ("0.0 beat 0a", "0a refused: unknown"),
        ("0.0 attach 0a\n0.0 attach 0b", "0a refused: superseded"),
        ("0.0 attach 0a\n0.0 evict 0", "0a refused: evicted"),
        ("0.0 attach 0a\n0.0 goodbye 0a 0", "0a refused: left"),
        ("0.0 attach 0a\n0.0 cut 0a", "0a: WAIT: this group is not attached again yet"),
        ("0.0 attach 0a\n0.0 restart", "0a: WAIT: this group is not attached again yet"),
    ],
)
def test_only_who_is_attached_is_answered(before: str, answer: str) -> None:
    player = Transcript(Rules())
    player.play(before)
    player.play("0.1 propose 0a")
    assert player.lines[-1] == f"  => {answer}"


def test_to_ask_is_a_sign_of_life() -> None:
    player = Transcript(Rules(), limits=Limits(heartbeat_timeout_s=5.0))
    player.play("0.0 attach 0a\n4.0 propose 0a\n8.0 propose 0a\n8.0 tick")
    assert not any("silent" in line for line in player.lines)


def test_every_verdict_is_given_somewhere_above() -> None:
    with open(__file__, encoding="utf-8") as source:
        text = source.read()
    assert all(f": {verdict.name}: " in text for verdict in ColdStart)


def test_a_group_that_waits_to_heal_from_the_dead_is_told_to_start_again() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 ask 0a 40
          => on disk: quorum 1, step 40
          => quorum 1 [0] step 40, to 0a
        0.5 attach 1a
          => 1a starts: HEAL, step 40
        0.6 ask 1a 0
        1.0 cut 0a
          => replica_gone group 0 stream_broke
        1.1 tick
          => on disk: quorum 1, step 40
        4.0 beat 1a
        6.0 beat 1a
        6.0 tick
          => quorum_waiting below_record
        6.2 tick
          => call of 1a refused: evicted
          => told 1a: EVICTED: those that had the state it came for are dead: start again
          => stream of 1a closed: evicted
          => replica_gone group 1 evicted
          => on disk: quorum 1, step 40
        7.0 attach 1b
          => 1b starts: RESTORE, step 40
        """,
        Rules(join_timeout_s=60.0),
    )


def test_a_group_that_waits_while_another_loads_a_save_is_left_in_peace() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 ask 0a 40
          => on disk: quorum 1, step 40
          => quorum 1 [0] step 40, to 0a
        1.0 cut 0a
          => replica_gone group 0 stream_broke
        2.0 attach 2a
          => 2a starts: RESTORE, step 40
        2.0 ask 2a 0
        2.1 attach 0b
          => 0b starts: RESTORE, step 40
        2.2 propose 0b 36 1
          => on disk: quorum 1, step 36, all load save-36-1
          => disaster_restore save-36-1
          => 0b: RESTORE: save-36-1
        2.3 tick
        6.0 beat 0b
        6.0 beat 2a
        9.0 beat 0b
        9.0 beat 2a
        9.0 tick
          => quorum_waiting stragglers
        13.0 beat 0b
        13.0 beat 2a
        13.0 tick
        """,
        Rules(join_timeout_s=60.0),
    )


GONE_BEFORE_IT_WAS_LOADED = """
2.0 attach 0b
  => 0b starts: RESTORE, step 40
2.0 attach 1b
  => 1b starts: RESTORE, step 40
2.1 propose 0b 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => disaster_restore save-30-1
  => 0b: RESTORE: save-30-1
2.2 propose 1b
  => on disk: quorum 1, step 30, all load save-30-1
  => 1b: RESTORE: save-30-1
2.3 ask 0b 0
2.4 ask 1b 0
"""


def test_groups_that_have_found_their_save_gone_are_told_to_start_again_and_choose_another() -> None:
    after_disaster(
        GONE_BEFORE_IT_WAS_LOADED
        + """2.5 tick
6.0 beat 0b 1b
7.4 tick
  => quorum_waiting below_record
7.5 tick
  => call of 0b refused: evicted
  => told 0b: EVICTED: those that had the state it came for are dead: start again
  => stream of 0b closed: evicted
  => replica_gone group 0 evicted
  => call of 1b refused: evicted
  => told 1b: EVICTED: those that had the state it came for are dead: start again
  => stream of 1b closed: evicted
  => replica_gone group 1 evicted
  => on disk: quorum 1, step 30, all load save-30-1
8.0 attach 0c
  => 0c starts: RESTORE, step 30
  => told 0c: ATTEMPT_OVER 1: group 0: rank 0 died
8.0 propose 0c
  => 0c: LOOK: no group lives that has the state
8.1 propose 0c 20 1
  => on disk: quorum 1, step 20, all load save-20-1
  => disaster_restore save-20-1
  => 0c: RESTORE: save-20-1
"""
    )


def test_one_that_starts_again_is_not_told_of_a_save_that_the_others_have_found_gone() -> None:
    after_disaster(
        GONE_BEFORE_IT_WAS_LOADED
        + """2.5 cut 0b
  => replica_gone group 0 stream_broke
2.6 attach 0c
  => 0c starts: RESTORE, step 30
  => call of 0b refused: superseded
  => told 0c: ATTEMPT_OVER 1: group 0: rank 0 died
2.6 propose 0c
  => 0c: LOOK: no group lives that has the state
2.7 propose 0c 20 1
  => on disk: quorum 1, step 20, all load save-20-1
  => disaster_restore save-20-1
  => call of 1b refused: evicted
  => told 1b: EVICTED: all load another save than it was told of: start again
  => stream of 1b closed: evicted
  => replica_gone group 1 evicted
  => 0c: RESTORE: save-20-1
"""
    )


def test_one_whose_request_has_just_timed_out_does_not_load_the_save_either() -> None:
    player = after_disaster(GONE_BEFORE_IT_WAS_LOADED)
    player.play("2.5 cut 0b\n2.6 cancel 1b\n2.6 attach 0c\n2.7 propose 0c")
    assert player.lines[-1] == "  => 0c: LOOK: no group lives that has the state"


def test_one_that_has_loaded_the_save_heals_those_that_have_found_it_gone() -> None:
    after_disaster(
        GONE_BEFORE_IT_WAS_LOADED
        + """2.5 attach 2a
  => 2a starts: RESTORE, step 30
  => told 2a: ATTEMPT_OVER 1: group 0: rank 0 died
2.5 propose 2a 30 1
  => on disk: quorum 1, step 30, all load save-30-1
  => 2a: RESTORE: save-30-1
2.6 tick
6.0 beat 0b 1b 2a
8.0 tick
  => quorum_waiting below_record
8.1 ask 2a 30
  => on disk: quorum 2, step 30
  => quorum 2 [0 1 2] step 30, to 0b 1b 2a
"""
    )
