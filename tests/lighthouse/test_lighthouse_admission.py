"""Admission: the number of ranks may change when all start from a save, and at no other time."""

from machine_transcript import Transcript

from lighthouse.effects import Note
from lighthouse.identity import Field, Mismatch
from lighthouse.machine import JobMachine
from lighthouse.model import (
    ColdStart,
    Hello,
    Member,
    Refusal,
    SaveOffer,
    SavesFound,
    Welcome,
    parse_replica_id,
)
from lighthouse.quorum import Rules


def attach(machine: JobMachine, name: str, ranks: int, now_s: float) -> object:
    id = parse_replica_id(f"job/{name}")
    hello = Hello(
        job="job", group=int(id.key), replica_id=id.text, group_world_size=ranks, fingerprint="same"
    )
    return machine.attach(id, hello, int(now_s * 1000), now_s)[0]


def test_another_number_of_ranks_goes_on_from_a_save() -> None:
    player = Transcript(Rules(expected_groups=2))
    player.play("0.0 attach 0a\n0.0 attach 1a\n0.0 ask 0a 40\n0.0 ask 1a 40\n0.5 tick")
    machine = player.machine
    differs = attach(machine, "2:x", 4, 0.6)
    assert isinstance(differs, Mismatch)
    assert differs.field is Field.GROUP_WORLD_SIZE
    player.play("1.0 restart")
    machine = player.machine
    assert attach(machine, "0:b", 4, 1.1) is Refusal.WARMING_UP
    assert isinstance(attach(machine, "0:b", 4, 6.0), Welcome)
    offer = SaveOffer(name="save", step=30, quorum_id=1)
    starts, first, second = machine.cold_starts, parse_replica_id("job/0:b"), parse_replica_id("job/1:b")
    outcome, _ = starts.propose(first, SavesFound(offer=offer), 6.1)
    assert not isinstance(outcome, Refusal)
    assert outcome.answer.verdict is ColdStart.RESTORE
    assert outcome.record is not None
    assert outcome.record.identity.group_world_size == 4
    starts.recorded(first, outcome.record, 6.1)
    assert isinstance(attach(machine, "1:b", 8, 6.2), Mismatch), "all that restore have the new number"
    assert isinstance(attach(machine, "1:b", 4, 6.2), Welcome)
    machine.ask(Member(id=first, step=30), 1, 6.3)
    (write,) = [
        each for each in machine.ask(Member(id=second, step=30), 2, 6.4) if not isinstance(each, Note)
    ]
    assert (write.record.quorum_id, write.record.identity.group_world_size) == (2, 4)  # type: ignore[union-attr]
