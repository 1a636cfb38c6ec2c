"""A start while a group that has said goodbye may still save the state: nobody goes back to an older one."""

import pytest
from machine_transcript import Transcript
from test_lighthouse_machine import check

from lighthouse.cold_start import LastSaves
from lighthouse.model import parse_replica_id
from lighthouse.quorum import Rules
from lighthouse.table import Limits

LEAVING = """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 attach 1a
          => 1a starts: FRESH, step 0
        0.0 ask 0a 40
        0.0 ask 1a 40
          => on disk: quorum 1, step 40
          => quorum 1 [0 1] step 40, to 0a 1a
        1.0 goodbye 0a 40 saves 20
          => replica_gone group 0 left
        1.0 cut 0a
        1.1 goodbye 1a 40 saves 20
          => replica_gone group 1 left
        1.1 cut 1a
        1.2 leave 0a
        1.3 attach 0b
          => 0b starts: HEAL, step 40
        1.4 propose 0b
          => 0b: WAIT: a group that has left may still save the state
        9.0 propose 0b 36 1
          => 0b: WAIT: a group that has left may still save the state
"""
RULES = Rules(min_replicas=2)


def test_who_starts_waits_until_the_last_save_is_there() -> None:
    check(
        LEAVING.rstrip()
        + """
        9.1 leave 1a
        9.2 propose 0b
          => 0b: LOOK: no group lives that has the state
        9.3 propose 0b 40 1
          => on disk: quorum 1, step 40, all load save-40-1
          => disaster_restore save-40-1
          => 0b: RESTORE: save-40-1
        9.4 leave 1a
          => 1a is not known
        """,
        RULES,
    )


def test_a_last_save_that_does_not_come_is_not_waited_for_for_ever() -> None:
    check(
        LEAVING.rstrip()
        + """
        21.0 propose 0b
          => 0b: WAIT: a group that has left may still save the state
        21.1 propose 0b
          => 0b: LOOK: no group lives that has the state
        """,
        RULES,
    )


def test_the_next_incarnation_of_the_group_that_saves_waits_for_it_too() -> None:
    player = Transcript(RULES)
    player.play(LEAVING)
    player.play("9.1 attach 1b\n9.1 propose 1b")
    assert player.lines[-1] == "  => 1b: WAIT: a group that has left may still save the state"
    player.play("9.2 leave 1a\n9.3 propose 1b")
    assert player.lines[-1] == "  => 1b: LOOK: no group lives that has the state"
    assert not player.machine.table.slots[1].gone


def test_while_another_group_has_the_state_nobody_waits() -> None:
    player = Transcript(RULES)
    player.play("0.0 attach 0a\n0.0 attach 1a\n0.0 ask 0a 40\n0.0 ask 1a 40\n1.0 goodbye 0a 40 saves 20")
    player.play("1.1 attach 0b\n1.1 propose 0b")
    assert player.lines[-1] == "  => 0b: HEAL: a group that has the state lives"


@pytest.mark.parametrize("word", ["goodbye 0a 40", "goodbye 0a 40 saves 0", "cut 0a", "leave 0a"])
def test_only_who_says_so_is_waited_for(word: str) -> None:
    player = Transcript(Rules())
    player.play(f"0.0 attach 0a\n0.0 ask 0a 40\n1.0 {word}\n1.1 attach 0b\n1.1 propose 0b")
    assert player.lines[-1] == "  => 0b: LOOK: no group lives that has the state"


@pytest.mark.parametrize("end", ["evict 0", "leave 0a"])
def test_a_goodbye_that_comes_too_late_is_not_waited_for(end: str) -> None:
    player = Transcript(Rules())
    player.play(f"0.0 attach 0a\n0.0 ask 0a 40\n1.0 {end}\n1.1 goodbye 0a 40 saves 20")
    assert not player.machine.cold_starts.awaits_save(1.2)


def test_a_job_whose_last_save_is_waited_for_is_kept_in_memory() -> None:
    player = Transcript(Rules())
    player.play("0.0 attach 0a\n0.0 ask 0a 40\n1.0 goodbye 0a 40 saves 20\n1.0 cut 0a\n9.0 tick")
    assert not player.machine.is_idle(9.0)
    player.play("9.1 leave 0a")
    assert player.machine.is_idle(9.2)


def test_only_so_many_are_remembered_and_none_that_are_over() -> None:
    saves = LastSaves(Limits(max_replicas=3).max_replicas)
    for number in range(9):
        saves.begin(parse_replica_id(f"job/0:{number}"), until_s=10.0 + number, now_s=5.0)
        assert len(saves) <= 3
    assert saves.may_come(17.9)
    assert not saves.may_come(18.0)
    saves.begin(parse_replica_id("job/0:z"), until_s=30.0, now_s=20.0)
    assert len(saves) == 1
