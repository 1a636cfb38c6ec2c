"""The lookout in scenarios: one that beats and does not move, one that heals, one that is slow."""

import pytest
from machine_transcript import Transcript
from test_lighthouse_machine_notices import after_both

from lighthouse.lag import RoundTimes
from lighthouse.pace import PaceRules
from lighthouse.table import Limits

LIMITS = Limits(
    heartbeat_timeout_s=1000.0,
    pulse_timeout_s=1000.0,
    pace=PaceRules(limit_factor=10.0, limit_floor_s=4.0, heal_deadline_s=10.0),
)


def scenario(transcript: str) -> Transcript:
    """Groups 0 and 1 have taken a step of one second; then this."""
    return after_both(
        "\n1.0 ask 0a 5\n1.0 ask 1a 5\n  => quorum 1 [0 1] step 5, to 0a 1a" + transcript, limits=LIMITS
    )


def test_one_that_stands_still_while_another_waits_is_suspect_and_then_out() -> None:
    scenario(
        """
1.1 tell 0a 5 COMPUTE
1.1 tell 1a 5 COMPUTE
2.0 tell 0a 5 REDUCE
3.1 tick
  => on disk: quorum 1, step 5
6.9 tick
7.1 tick
  => replica_suspect group 1
12.1 tick
  => told 1a 1a.1: EVICTED: no progress in step 5 (compute) for 10.1 s while others wait
  => stream of 1a closed: evicted
  => stream of 1a.1 closed: evicted
  => replica_gone group 1 evicted
  => told 0a 0a.1: ATTEMPT_OVER 1: group 1: no progress in step 5 (compute) for 10.1 s while others wait
  => on disk: quorum 1, step 5
"""
    )


def test_one_that_moves_again_is_no_longer_suspect() -> None:
    player = scenario(
        """
1.1 tell 0a 5 COMPUTE
1.1 tell 1a 5 COMPUTE
2.0 tell 0a 5 REDUCE
7.1 tick
  => replica_suspect group 1
  => on disk: quorum 1, step 5
7.2 tell 1a 5 REDUCE
"""
    )
    assert not player.machine.table.slots[1].suspect
    player.play("7.3 ask 0a 6\n7.3 ask 1a 6")
    assert player.lines[-1] == "  => quorum 1 [0 1] step 6, to 0a 1a"


def test_saying_the_same_again_is_no_progress() -> None:
    player = scenario("\n1.1 tell 1a 5 COMPUTE\n2.0 tell 0a 5 REDUCE")
    player.play("\n".join(f"{second}.0 tell 1a 5 COMPUTE" for second in range(2, 13)) + "\n12.1 tick")
    assert any("EVICTED: no progress" in line for line in player.lines)


def test_all_in_the_reduce_for_too_long_ends_the_attempt_and_then_shows_who_is_stuck() -> None:
    scenario(
        """
1.1 tell 0a 5 REDUCE
1.1 tell 1a 5 REDUCE
11.0 tick
  => on disk: quorum 1, step 5
11.2 tick
  => told 0a 0a.1 1a 1a.1: ATTEMPT_OVER 1: all members wait for each other
11.3 ask 0a 5 fail
11.4 tick
21.3 tick
  => replica_suspect group 1
  => quorum_waiting member_not_asking
21.5 tick
  => told 1a 1a.1: EVICTED: no progress in step 5 (reduce) for 10.1 s while others wait
  => stream of 1a closed: evicted
  => stream of 1a.1 closed: evicted
  => replica_gone group 1 evicted
  => on disk: quorum 2, step 5
  => quorum 2 [0] step 5, to 0a
"""
    )


def take_steps(player: Transcript, rounds_of_1: str = "") -> None:
    """Twelve steps, in each of which group 0 needs one second to compute and group 1 two."""
    for number, step in enumerate(range(5, 17)):
        at, done = 1.1 + 2 * number, 3.1 + 2 * number
        player.play(
            f"{at} tell 0a {step} COMPUTE 1\n{at} tell 1a {step} COMPUTE {rounds_of_1}\n"
            f"{at + 1:.1f} tell 0a {step} REDUCE\n{done:.1f} tell 1a {step} REDUCE\n"
            f"{done:.1f} ask 0a {step + 1}\n{done:.1f} ask 1a {step + 1}\n{done:.1f} tick"
        )


def test_a_group_that_is_steadily_slower_is_named_once_and_stays() -> None:
    player = scenario("")
    take_steps(player, rounds_of_1="1")
    assert sum("replica_slow group 1" in line for line in player.lines) == 1
    assert player.machine.table.slots[1].slow == pytest.approx(2.0)
    assert player.machine.table.slots[0].slow == 0.0
    assert player.machine.table.slots[1].gone is None


def test_one_that_is_slow_now_and_then_is_not_named() -> None:
    player = scenario("")
    slots = player.machine.table.slots
    for now_s, needed_s in ((20, 2.0), (25, 1.0), (29, 2.0), (34, 2.0), (38, 2.0), (39, 2.0), (40, 1.0)):
        slots[0].computed_s.extend([1.0] * 8)
        slots[1].computed_s.extend([needed_s] * 8)
        player.play(f"{now_s}.0 tick")
        assert bool(slots[1].slow) == (now_s == 39), now_s


def tell_rounds(player: Transcript, *waited_shares: float, seconds: int = 8) -> None:
    """A pulse a second of each rank of group 1, all of it spent in rounds, of which it waits a share."""
    machine, id = player.machine, player.machine.table.slots[1].id
    for second in range(1, seconds + 1):
        for rank, share in enumerate(waited_shares):
            stream = machine.table.slots[1].lines[rank].stream
            machine.pulse(id, stream, 2.0, RoundTimes(rounds_s=second, waited_s=second * share))


def test_a_rank_for_which_the_others_wait_is_named_once_until_it_has_caught_up() -> None:
    player = scenario("")
    tell_rounds(player, 0.6, 0.1)
    player.play("3.0 tick")
    player.play("12.0 tick")
    assert player.machine.table.slots[1].slow_ranks == {}, "it may be over in a moment"
    player.play("13.0 tick")
    player.play("14.5 tick")
    assert sum("replica_slow group 1" in line for line in player.lines) == 1
    assert player.machine.table.slots[1].slow_ranks == {1: pytest.approx(0.5)}
    assert player.machine.table.slots[0].slow_ranks == {}
    for line in player.machine.table.slots[1].lines.values():
        line.waits.told.clear()
    tell_rounds(player, 0.2, 0.2)
    player.play("16.0 tick")
    assert player.machine.table.slots[1].slow_ranks == {}


def test_ranks_that_differ_a_little_are_not_named() -> None:
    player = scenario("")
    tell_rounds(player, 0.4, 0.1)
    player.play("3.0 tick\n14.0 tick")
    assert not any("replica_slow" in line for line in player.lines)


def test_a_group_that_was_dealt_more_rounds_is_not_slow() -> None:
    player = scenario("")
    take_steps(player, rounds_of_1="2")
    assert not any("replica_slow" in line for line in player.lines)


def test_a_spare_that_computes_nothing_makes_nobody_slow() -> None:
    player = scenario("")
    take_steps(player, rounds_of_1="0")
    assert not player.machine.table.slots[1].computed_s
    assert not any("replica_slow" in line for line in player.lines)


def test_a_group_that_tells_no_rounds_is_taken_to_have_one() -> None:
    player = scenario("")
    take_steps(player)
    assert player.machine.table.slots[1].slow == pytest.approx(2.0)
