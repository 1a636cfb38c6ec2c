"""Times: a machine's groups tell where their time went, die, leave, come back, and the job ends."""

from machine_transcript import Transcript
from test_lighthouse_machine_notices import after_both

TOLD = {"productive": 4.0, "restarting": 6.0}


def tell(player: Transcript, name: str, seconds: dict[str, float], now_s: float) -> None:
    machine = player.machine
    slot = machine.table.slots[int(name[0])]
    stream = slot.lines[0].stream
    machine.times.told(machine.table, slot.id, stream, seconds, now_s)


def test_a_death_is_counted_and_a_planned_leave_is_not() -> None:
    player = after_both("")
    for name in ("0a", "1a"):
        tell(player, name, TOLD, 1.0)
    player.play("2.0 goodbye 0a 7\n2.0 cut 1a 0")
    (death,) = player.machine.times.toll.recent
    assert (death.group, death.cause) == (1, "stream_broke")
    assert player.machine.times.of(0, 1002.0) == {**TOLD, "not_provisioned": 880.0}
    assert player.machine.times.of(1, 1002.0) == {**TOLD, "detection": 880.0}
    assert player.machine.times.total(2.0) == {"productive": 8.0, "restarting": 12.0}


def test_what_is_said_on_a_stream_that_is_not_open_counts_for_nothing() -> None:
    player = after_both("")
    slot = player.machine.table.slots[0]
    player.machine.times.told(player.machine.table, slot.id, 999, TOLD, 1.0)
    assert player.machine.times.by_group(1.0) == {}


def test_after_the_end_nobody_is_missed() -> None:
    player = after_both("")
    for name in ("0a", "1a"):
        tell(player, name, TOLD, 1.0)
    player.play("2.0 goodbye 0a 7 finished\n3.0 goodbye 1a 7 finished")
    assert player.machine.times.total(1e6) == {"productive": 8.0, "restarting": 12.0}
    assert not player.machine.times.toll.recent
