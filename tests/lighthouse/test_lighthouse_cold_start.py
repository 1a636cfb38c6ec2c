"""A start when nobody may be left from whom to heal: one decision for all, as transcripts."""

from pathlib import Path

import pytest
from disaster import TWO, after_disaster
from machine_transcript import Transcript
from test_lighthouse_machine import check

from lighthouse.model import ColdStart
from lighthouse.quorum import Rules
from lighthouse.table import Limits


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


def test_every_verdict_is_given_in_some_transcript() -> None:
    files = Path(__file__).parent.glob("test_lighthouse_cold_start*.py")
    text = "".join(path.read_text() for path in files)
    assert all(f": {verdict.name}: " in text for verdict in ColdStart)
