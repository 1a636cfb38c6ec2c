"""The rows of a machine: a group that has died is not forgotten while its job goes on without it."""

from machine_transcript import Transcript
from test_lighthouse_machine_notices import after_both

from lighthouse.status import Document, describe_job
from lighthouse.table import Limits

LIMITS = Limits(heartbeat_timeout_s=1e6, pulse_timeout_s=1e6)
LOST = "\n2.0 cut 1a 0\n2.0 cut 1a 1"


def lost(**more: object) -> Transcript:
    """Group 1 has died, and group 0 has gone on without it."""
    player = after_both("", limits=LIMITS, **more)
    player.play(LOST + "\n2.1 ask 0a 4\n2.2 tick")
    assert set(player.machine.member_labels()) == {"group 0"}
    return player


def pass_time(player: Transcript, until_s: int) -> None:
    for now_s in range(10, until_s, 10):
        player.machine.tick(float(now_s))


def rows(player: Transcript, now_s: float) -> dict[object, Document]:
    return {group["group"]: group for group in describe_job(player.machine, now_s)["groups"]}


def test_a_group_that_has_died_stays_visible_and_its_incarnations_are_counted_on() -> None:
    player = lost()
    pass_time(player, 2000)
    assert rows(player, 2000.0)[1]["state"] == "dead"
    assert rows(player, 2000.0)[1]["gone_s"] == 1998.0
    player.play("2000.0 attach 1b")
    assert rows(player, 2000.0)[1]["incarnations"] == 2


def test_one_that_has_left_is_forgotten_after_a_while() -> None:
    player = after_both("", limits=LIMITS)
    player.play("2.0 goodbye 1a 5\n2.0 cut 1a 0\n2.0 cut 1a 1\n2.1 ask 0a 5\n2.2 tick")
    pass_time(player, 600)
    assert rows(player, 600.0)[1]["state"] == "left"
    pass_time(player, 800)
    assert 1 not in rows(player, 800.0)


def test_one_that_never_attached_is_forgotten_after_a_while() -> None:
    player = after_both("", limits=Limits(heartbeat_timeout_s=5.0, pulse_timeout_s=1e6))
    player.play("1.0 beat 7a")
    for now_s in range(2, 800):
        player.play(f"{now_s}.0 beat 0a\n{now_s}.0 beat 1a\n{now_s}.5 tick")
        if now_s == 500:
            assert rows(player, 500.0)[7]["state"] == "silent"
    assert 7 not in rows(player, 800.0)


def test_the_operator_can_stop_missing_a_dead_group() -> None:
    player = lost()
    pass_time(player, 100)
    known, effects = player.machine.evict(1, "the operator", 100.0)
    assert known
    assert effects
    assert not player.machine.table.slots[1].is_missed
    known, _ = player.machine.evict(1, "the operator", 101.0)
    assert not known
    pass_time(player, 900)
    assert 1 not in rows(player, 900.0)


def test_after_the_end_nobody_is_missed_for_long() -> None:
    player = lost()
    player.play("3.0 goodbye 0a 9 finished")
    pass_time(player, 900)
    assert 1 not in rows(player, 900.0)
