"""Groups that wait for a state, or for a save, which nobody can give them any more."""

import pytest
from disaster import after_disaster
from machine_transcript import Transcript
from test_lighthouse_machine import check

from lighthouse.quorum import Rules


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


LEFT_BEHIND = """
        0.0 attach 0a
        0.0 attach 1a
        0.0 ask 0a 10
        0.0 ask 1a 10
        1.0 ask 1a 11
        6.0 beat 1a
        6.0 tick
        6.1 ask 1a 11
        7.0 ask 1a 40
"""


@pytest.mark.parametrize(("saved", "evicted"), [(None, False), (9, False), (10, True), (35, True)])
def test_a_survivor_that_was_left_behind_starts_again_where_a_save_holds_more_than_it(
    saved: int | None, evicted: bool
) -> None:
    player = Transcript(Rules())
    player.play(LEFT_BEHIND)
    assert player.machine.record.max_step == 40
    if saved is not None:
        player.play(f"7.1 saved 1a {saved} 2")
    player.play("7.2 cut 1a\n7.3 beat 0a\n7.4 ask 0a 10\n7.5 tick\n10.0 beat 0a\n12.4 beat 0a\n12.4 tick")
    assert not any("EVICTED" in line for line in player.lines), "a heartbeat timeout has not passed"
    player.play("12.6 tick")
    told = "  => told 0a: EVICTED: those that had the state it came for are dead: start again"
    assert (told in player.lines) is evicted


def test_a_survivor_of_the_last_quorum_goes_on_whatever_is_saved() -> None:
    player = Transcript(Rules())
    player.play("0.0 attach 0a\n0.0 attach 1a\n0.0 ask 0a 10\n0.0 ask 1a 10\n1.0 saved 1a 11 1\n1.1 cut 1a")
    player.play("1.2 ask 0a 10\n1.3 tick")
    assert "  => quorum 2 [0] step 10, to 0a" in player.lines


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
