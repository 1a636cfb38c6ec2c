"""The machine: readable transcripts of what happens and what follows."""

import textwrap

import pytest
from machine_transcript import Transcript

from lighthouse.quorum import Rules
from lighthouse.table import Limits


def check(transcript: str, rules: Rules | None = None, **more: object) -> Transcript:
    """Play the events of a transcript and compare the whole."""
    wanted = textwrap.dedent(transcript).strip()
    player = Transcript(rules or Rules(join_timeout_s=60.0), **more)  # type: ignore[arg-type]
    assert player.play(wanted) == wanted
    return player


def test_three_groups_start_and_step() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.1 attach 1a
          => 1a starts: FRESH, step 0
        0.2 ask 0a 0
        0.2 why
          => expected_groups: waiting for the expected groups: 1 of 3 ask, 0.0 s of 60.0 s
        0.3 ask 1a 0
        0.4 ask 2a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0 1 2] step 0, to 0a 1a 2a
        1.0 ask 0a 1
        1.0 ask 1a 1
        1.0 why
          => member_not_asking: waiting for group 2: in the last quorum and not asking yet, 0.0 s of 60.0 s
        1.0 ask 2a 1
          => on disk: quorum 1, step 1
          => quorum 1 [0 1 2] step 1, to 0a 1a 2a
        1.5 ask 0a 2
        1.5 ask 1a 2
        1.5 ask 2a 2
          => quorum 1 [0 1 2] step 2, to 0a 1a 2a
        1.6 tick
        2.1 tick
          => on disk: quorum 1, step 2
        """,
        Rules(expected_groups=3, join_timeout_s=60.0),
    )


def test_a_broken_stream_is_a_death_that_frees_the_others_at_once() -> None:
    check(
        """
        0.0 attach 1a
          => 1a starts: FRESH, step 0
        0.0 beat 0a
        0.0 ask 0a 4
        0.0 ask 1a 4
          => on disk: quorum 1, step 4
          => quorum 1 [0 1] step 4, to 0a 1a
        1.0 ask 0a 5
        1.1 cut 1a
          => replica_gone group 1 stream_broke
          => on disk: quorum 2, step 5
          => quorum 2 [0] step 5, to 0a
        """
    )


def test_late_pulses_and_asks_of_the_dead_do_not_revive_but_a_new_stream_does() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 cut 0a
          => replica_gone group 0 stream_broke
        0.1 beat 0a
        0.1 ask 0a 0
        0.1 tick
        0.1 why
          => no_asks: nobody asks for a quorum
        0.5 attach 0a
          => 0a starts: FRESH, step 0
          => on disk: quorum 1, step 0
          => quorum 1 [0] step 0, to 0a
        """
    )


def test_a_new_incarnation_replaces_the_old_one_at_once() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 attach 1a
          => 1a starts: FRESH, step 0
        0.0 ask 1a 0
        0.0 ask 0a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0 1] step 0, to 0a 1a
        1.0 ask 0a 1
        1.0 ask 1a 1
          => on disk: quorum 1, step 1
          => quorum 1 [0 1] step 1, to 0a 1a
        2.0 ask 1a 2
        2.0 ask 0a 2
          => quorum 1 [0 1] step 2, to 0a 1a
        3.0 ask 0a 3
        3.1 beat 1b
        3.1 attach 1b
          => 1b starts: HEAL, step 2
          => told 1a: SUPERSEDED: a newer incarnation of group 1 is here
          => stream of 1a closed: superseded
          => replica_gone group 1 superseded
          => told 0a: ATTEMPT_OVER 1: group 1 was replaced by a new incarnation
          => on disk: quorum 2, step 3
          => quorum 2 [0] step 3, to 0a
        3.2 beat 1a
        3.2 ask 1a 3
          => call of 1a refused: superseded
        3.2 attach 1a 3
          => 1a refused: superseded
        3.3 ask 0a 4
          => quorum 2 [0] step 4, to 0a
        3.4 ask 1b 0
        3.5 ask 0a 5
          => on disk: quorum 3, step 5
          => quorum 3 [0 1] step 5, to 0a 1b
        """
    )


def test_a_new_incarnation_ends_the_call_of_the_old_one() -> None:
    check(
        """
        0.0 beat 0a 1a
        0.0 ask 1a 0
        0.5 ask 1b 0
          => call of 1a refused: superseded
          => replica_gone group 1 superseded
        0.6 ask 0a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0 1] step 0, to 0a 1b
        """
    )


def test_a_cancelled_call_does_not_count_but_keeps_its_place_in_the_queue() -> None:
    check(
        """
        0.0 beat 0a 1a
        0.0 ask 0a 0
        9.0 cancel 0a
        9.0 beat 0a 1a
        9.0 why
          => no_asks: nobody asks for a quorum
        9.1 ask 0a 0
        9.1 why
          => stragglers: waiting for group 1: alive and not asking yet, 9.1 s of 60.0 s
        """
    )


def test_two_fresh_groups_form_a_quorum_of_exactly_two() -> None:
    check(
        """
        0.0 ask 2a 0
          => on disk: quorum 1, step 0
          => quorum 1 [2] step 0, to 2a
        1.0 beat 0a 1a
        1.0 ask 2a 0
          => on disk: quorum 2, step 0
          => quorum 2 [2] step 0, to 2a
        1.0 ask 2a 0
          => on disk: quorum 3, step 0
          => quorum 3 [2] step 0, to 2a
        7.0 beat 0a 1a
        7.0 tick
          => replica_gone group 2 silent
        7.0 ask 0a 0
        7.1 ask 1a 0
          => on disk: quorum 4, step 0
          => quorum 4 [0 1] step 0, to 0a 1a
        """
    )


def test_the_frozen_are_out_after_the_heartbeat_timeout() -> None:
    check(
        """
        0.0 beat 0a 1a
        0.0 ask 0a 3
        0.0 ask 1a 3
          => on disk: quorum 1, step 3
          => quorum 1 [0 1] step 3, to 0a 1a
        1.0 ask 0a 4
        1.1 tick
        4.9 beat 0a
        4.9 tick
          => quorum_waiting member_not_asking
        5.0 tick
          => replica_gone group 1 silent
          => on disk: quorum 2, step 4
          => quorum 2 [0] step 4, to 0a
        6.0 beat 1a
          => replica_heard_again group 1
        """
    )


def test_ids_rise_when_a_place_changes_or_a_commit_failed_and_not_otherwise() -> None:
    check(
        """
        0.0 ask 0a 1
          => on disk: quorum 1, step 1
          => quorum 1 [0] step 1, to 0a
        0.1 ask 0a 2
          => quorum 1 [0] step 2, to 0a
        0.2 ask 0a 2 fail
          => on disk: quorum 2, step 2
          => quorum 2 [0] step 2, to 0a
        0.3 ask 0a 3
          => quorum 2 [0] step 3, to 0a
        0.4 ask 0a 3 moved
          => on disk: quorum 3, step 3
          => quorum 3 [0] step 3, to 0a
        """
    )


def test_a_planned_leave_costs_the_others_nothing() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 attach 1a
          => 1a starts: FRESH, step 0
        0.0 ask 0a 0
        0.0 ask 1a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0 1] step 0, to 0a 1a
        0.5 ask 0a 1
        0.6 goodbye 1a 1
          => replica_gone group 1 left
          => on disk: quorum 2, step 1
          => quorum 2 [0] step 1, to 0a
        0.6 beat 1a
        0.6 cut 1a
        0.7 ask 1a 1
          => call of 1a refused: left
        0.7 attach 1a 1
          => 1a refused: left
        0.8 attach 1b
          => 1b starts: HEAL, step 1
        """
    )


def test_a_second_stream_of_the_same_incarnation_outlives_the_first() -> None:
    player = check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        """
    )
    first = player._streams["0a", 0]
    player.play("0.1 attach 0a")
    assert player.lines[-1] == "  => stream of 0a closed: reattached"
    player._streams["0a", 0] = first
    player.play("0.2 cut 0a")
    assert player.lines[-1] == "0.2 cut 0a"
    assert player.machine.is_busy(0.2)


def test_asking_too_often_ends_the_oldest_call() -> None:
    check(
        """
        0.0 beat 0a 1a
        0.0 ask 1a 0
        0.1 ask 1a 0
        0.2 ask 1a 0
          => call of 1a refused: too_many_calls
        0.3 ask 0a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0 1] step 0, to 0a 1a 1a
        """,
        limits=Limits(max_calls_per_replica=2),
    )


def test_the_pool_follows_torchfts_rules() -> None:
    check(
        """
        0.0 ask x 0
          => on disk: quorum 1, step 0
          => quorum 1 [x] step 0, to x
        0.1 beat y
        0.2 ask x 1
          => on disk: quorum 1, step 1
          => quorum 1 [x] step 1, to x
        0.3 ask y 0
        0.3 why
          => member_not_asking: waiting for ~5bb388b8: in the last quorum and not asking yet, 0.0 s of 60.0 s
        0.4 ask x 2
          => on disk: quorum 2, step 2
          => quorum 2 [x y] step 2, to x y
        """,
        job="",
        rules=Rules(join_timeout_s=60.0, torchft_rules=True),
    )


@pytest.mark.parametrize("groups", [1, 3, 64])
def test_lock_step_answers_each_call_once(groups: int) -> None:
    player = Transcript(Rules(expected_groups=groups))
    for step in range(5):
        player.play("\n".join(f"{step}.0 ask {group}a {step}" for group in range(groups)))
    answers = [line for line in player.lines if "=> quorum" in line]
    assert len(answers) == 5
    for line in answers:
        assert sorted(line.split(" to ")[1].split()) == sorted(f"{group}a" for group in range(groups))
