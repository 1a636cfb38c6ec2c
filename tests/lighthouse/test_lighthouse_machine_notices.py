"""The machine: who is told what, and when: deaths, given-up attempts, pulses, drain, evictions."""

from machine_transcript import Transcript
from test_lighthouse_machine import check

from lighthouse.table import Limits

BOTH = """
        0.0 attach 0a
        0.0 watch 0a 1
        0.0 attach 1a
        0.0 watch 1a 1
        0.0 ask 0a 4
        0.0 ask 1a 4
"""


def after_both(transcript: str, **more: object) -> Transcript:
    """Groups 0 and 1, of two ranks each, train in quorum 1 at step 4; then this."""
    start = Transcript(rules=check("0.0 tick").rules)
    start.play(BOTH)
    return check("\n".join(start.lines) + transcript, **more)


def test_the_death_of_any_rank_ends_the_attempt_for_all_ranks_that_are_left() -> None:
    after_both(
        """
1.0 cut 1a 1
  => replica_gone group 1 stream_broke
  => told 0a 0a.1 1a: ATTEMPT_OVER 1: group 1: rank 1 died
1.1 cut 1a
1.1 ask 0a 4 fail
  => on disk: quorum 2, step 4
  => quorum 2 [0] step 4, to 0a
"""
    )


def test_a_group_lives_again_when_each_broken_stream_is_back() -> None:
    after_both(
        """
1.0 cut 1a 1
  => replica_gone group 1 stream_broke
  => told 0a 0a.1 1a: ATTEMPT_OVER 1: group 1: rank 1 died
1.0 cut 1a
1.1 ask 1a 4 fail
1.2 attach 1a 4
  => 1a starts: HEAL, step 4
  => told 1a: ATTEMPT_OVER 1: group 1: rank 1 died
1.2 why
  => no_asks: nobody asks for a quorum
1.3 watch 1a 1
  => told 1a.1: ATTEMPT_OVER 1: group 1: rank 1 died
1.3 ask 0a 4 fail
  => on disk: quorum 2, step 4
  => quorum 2 [0 1] step 4, to 0a 1a
"""
    )


def test_an_abandoned_attempt_is_over_for_the_others_once_and_its_number_is_used_up() -> None:
    after_both(
        """
1.0 abandon 1a 1
  => told 0a 0a.1: ATTEMPT_OVER 1: group 1: no reason
1.1 abandon 0a 1
1.2 ask 0a 4
1.2 ask 1a 4
  => on disk: quorum 2, step 4
  => quorum 2 [0 1] step 4, to 0a 1a
1.3 abandon 1a 1
"""
    )


def test_asking_again_means_that_the_attempt_is_over() -> None:
    after_both(
        """
1.0 ask 1a 4
  => told 0a 0a.1: ATTEMPT_OVER 1: group 1 asks for step 4 again
1.1 ask 0a 4
  => on disk: quorum 2, step 4
  => quorum 2 [0 1] step 4, to 0a 1a
"""
    )


def test_a_request_that_was_never_answered_may_be_made_again() -> None:
    after_both(
        """
1.0 ask 1a 5
2.0 cancel 1a
2.0 ask 1a 5
2.1 ask 1a 5
2.2 ask 0a 5
  => quorum 1 [0 1] step 5, to 0a 1a 1a
"""
    )


def test_a_planned_leave_ends_no_attempt_and_its_watches_end_in_silence() -> None:
    after_both(
        """
1.0 goodbye 1a 5
  => replica_gone group 1 left
1.0 cut 1a 1
1.1 cut 1a
1.2 leave 0b
  => 0b is not known
1.2 leave 0a
  => replica_gone group 0 left
1.3 cut 0a
"""
    )


def test_a_frozen_rank_takes_its_group_with_it_for_good() -> None:
    after_both(
        """
0.5 pulse 1a
0.5 pulse 1a 1
1.0 beat 0a 1a
4.0 pulse 1a
4.9 beat 0a 1a
4.9 tick
5.5 tick
  => told 1a 1a.1: EVICTED: rank 1 has said nothing for 5.0 s
  => stream of 1a closed: evicted
  => stream of 1a.1 closed: evicted
  => replica_gone group 1 evicted
  => told 0a 0a.1: ATTEMPT_OVER 1: group 1: rank 1 has said nothing for 5.0 s
  => on disk: quorum 1, step 4
5.6 ask 1a 4
  => call of 1a refused: evicted
5.6 attach 1a
  => 1a refused: evicted
5.6 watch 1a 1
  => 1a refused: evicted
5.6 beat 1a
  => 1a refused: evicted
5.7 attach 1b
  => 1b starts: HEAL, step 4
5.8 restart
5.8 attach 1a
  => 1a refused: evicted
5.9 beat 1a
  => 1a refused: evicted
"""
    )


def test_a_rank_that_never_pulsed_is_not_held_to_it() -> None:
    player = after_both("\n4.9 beat 0a 1a\n6.0 tick")
    assert player.machine.table.frozen(1e9) == []


def test_a_host_that_vanished_is_out_after_the_heartbeat_timeout_and_the_others_are_told() -> None:
    after_both(
        """
4.0 beat 0a
5.0 tick
  => replica_gone group 1 silent
  => told 0a 0a.1 1a 1a.1: ATTEMPT_OVER 1: group 1: its heartbeats stopped
5.1 beat 1a
  => replica_heard_again group 1
5.2 ask 1a 4
5.2 ask 0a 4 fail
  => on disk: quorum 2, step 4
  => quorum 2 [0 1] step 4, to 0a 1a
"""
    )


def test_drain_reaches_every_rank_and_those_that_come_back() -> None:
    after_both(
        """
1.0 drain 1
  => told 1a 1a.1: DRAIN: asked to leave at the end of the step
1.0 drain 7
  => group 7 is not there
1.1 watch 1a 1
  => stream of 1a.1 closed: reattached
  => told 1a.1: DRAIN: asked to leave at the end of the step
1.2 goodbye 1a 5
  => replica_gone group 1 left
1.2 drain 1
  => group 1 is not there
"""
    )


def test_the_operator_evicts() -> None:
    after_both(
        """
1.0 ask 1a 5
1.0 evict 1
  => on disk: quorum 1, step 4
  => call of 1a refused: evicted
  => told 1a 1a.1: EVICTED: the operator
  => stream of 1a closed: evicted
  => stream of 1a.1 closed: evicted
  => replica_gone group 1 evicted
  => told 0a 0a.1: ATTEMPT_OVER 1: group 1: the operator
1.1 evict 1
  => group 1 is not there
"""
    )


def test_late_joiners_hear_that_the_job_is_finished() -> None:
    after_both(
        """
1.0 attach 2a
  => 2a starts: HEAL, step 4
1.0 watch 2a 1
1.1 goodbye 0a 5 finished
  => replica_gone group 0 finished
  => job_finished
  => told 2a 2a.1: FINISHED: the job is finished: step 5 was the last
  => on disk: quorum 1, step 5, finished at 5
"""
    )


def test_after_a_restart_the_members_of_older_attempts_are_told_too() -> None:
    after_both(
        """
0.5 ask 0a 4 fail
0.5 ask 1a 4 fail
  => on disk: quorum 2, step 4
  => quorum 2 [0 1] step 4, to 0a 1a
1.0 restart
1.1 attach 1a 4
  => 1a starts: HEAL, step 4
1.1 abandon 1a 1
1.1 abandon 1a 2
1.2 attach 0a 4
  => 0a starts: HEAL, step 4
  => told 0a: ATTEMPT_OVER 1: group 1: no reason
  => told 0a: ATTEMPT_OVER 2: group 1: no reason
"""
    )


def test_after_a_restart_whoever_is_not_heard_again_is_given_up_for_the_others() -> None:
    after_both(
        """
1.0 restart
1.1 attach 0a 4
  => 0a starts: HEAL, step 4
1.1 beat 0a
5.9 beat 0a
5.9 tick
6.0 tick
  => told 0a: ATTEMPT_OVER 1: group 1 was not heard after a restart of the Lighthouse
"""
    )


def test_a_frozen_process_that_wakes_after_a_restart_displaces_nobody() -> None:
    after_both(
        """
1.0 attach 1b
  => 1b starts: HEAL, step 4
  => told 1a 1a.1: SUPERSEDED: a newer incarnation of group 1 is here
  => stream of 1a closed: superseded
  => stream of 1a.1 closed: superseded
  => replica_gone group 1 superseded
  => told 0a 0a.1: ATTEMPT_OVER 1: group 1 was replaced by a new incarnation
1.1 tick
  => on disk: quorum 1, step 4
2.0 restart
2.0 attach 1a 4
  => 1a refused: superseded
2.1 attach 1b
  => 1b starts: HEAL, step 4
2.2 ask 1a 4
  => call of 1a refused: superseded
"""
    )


def test_a_newcomer_after_a_restart_takes_the_place_of_the_one_on_record_for_good() -> None:
    after_both(
        """
1.0 tick
2.0 restart
2.1 beat 1b
2.1 attach 1b
  => 1b starts: HEAL, step 4
2.2 attach 1a 4
  => 1a refused: superseded
2.2 beat 1a
"""
    )


def test_without_a_disk_any_death_after_a_restart_ends_the_attempts_of_all() -> None:
    player = Transcript(rules=check("0.0 tick").rules, limits=Limits())
    player.forget_disk(first_quorum_id=1000)
    player.play("0.1 attach 0a 7\n0.1 attach 1a 7\n0.2 cut 1a")
    assert player.lines[-2:] == [
        "  => replica_gone group 1 stream_broke",
        "  => told 0a: ATTEMPT_OVER 1000: group 1: rank 0 died",
    ]
