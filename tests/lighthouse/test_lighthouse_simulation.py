"""Many seeded lives of a job under a nemesis; and broken machines, each of which is caught.

HEADWAY_SIM_SEEDS=N plays N seeds instead; a failing seed is named, and
`python tests/lighthouse/simulated_job.py SEED` plays it again.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_job import SimulatedJob

from lighthouse import quorum
from lighthouse.cold_start import ColdStarts, Outcome, Whereabouts
from lighthouse.effects import Effect
from lighthouse.ended import EndedAttempts
from lighthouse.lineage import digest_of
from lighthouse.lookout import Lookout
from lighthouse.machine import JobMachine
from lighthouse.model import Member, Quorum, Restore, SaveOffer, SavesFound, StartMode
from lighthouse.quorum_book import QuorumBook
from lighthouse.slot import Gone, Slot
from lighthouse.table import Effects, Table

SEEDS = int(os.environ.get("HEADWAY_SIM_SEEDS", "1600"))
SEEDS_PER_MUTATION = 400


def test_rules_hold_and_everybody_commits_again_when_faults_stop() -> None:
    quorums = restores = 0
    faults: Counter[str] = Counter()
    for seed in range(SEEDS):
        job = SimulatedJob(seed).live()
        quorums += len(job.server.judge.quorums)
        restores += job.server.restores.decided
        faults += job.faults
    assert quorums > 5 * SEEDS, "the nemesis must leave room for quorums"
    assert restores > SEEDS / 5, "now and then nobody is left who has the state"
    assert len(faults) == 16
    assert min(faults.values()) > SEEDS / 10, "every kind of fault has its turn"


def test_a_seed_can_be_played_again() -> None:
    first, second = SimulatedJob(7).live(), SimulatedJob(7).live()
    assert first.server.judge.quorums == second.server.judge.quorums
    assert first.world.now_s == second.world.now_s


@pytest.mark.parametrize("groups", range(2, 6))
def test_only_the_slow_are_named_however_many_rounds_they_are_dealt(groups: int) -> None:
    seeds = range(groups - 2, 400, 40)
    for seed in seeds:
        assert len(SimulatedJob(seed).launchers) == groups
        assert SimulatedJob(seed).live_in_peace() == set()
        assert SimulatedJob(seed).live_in_peace(slow_group=1) == {"group 1"}


def no_objection(*_arguments: object) -> None:
    """A rule of the decision that never forbids anything."""


def everybody_who_asks(situation: quorum.Situation) -> tuple[Member, ...]:
    """In some order."""
    return tuple(ask.member for ask in reversed(situation.asks.values()))


def never_changed(_book: QuorumBook, _members: tuple[Member, ...]) -> bool:
    """Keeps the id although members came and went."""
    return False


def told_before_written(book: QuorumBook, members: tuple[Member, ...], now_s: float) -> Effects:
    """Answers first."""
    made = Quorum(quorum_id=book.record.quorum_id + 1, members=members)
    return book._issue(made, now_s, changed=True)


def nobody_dies(_table: Table, _slot: Slot, _gone: Gone, _now_s: float, **_fields: object) -> Effects:
    """A broken stream is let be."""
    return []


def not_taken_back(_slot: Slot, _call: int, _now_s: float) -> None:
    """A cancelled call goes on counting."""


def not_announced(_ended: EndedAttempts, *_arguments: object) -> list[Effect]:
    """Survivors are not told."""
    return []


def no_second_ask(_machine: JobMachine, _slot: Slot, _step: int) -> Effects:
    """To ask again means nothing."""
    return []


def nobody_looks(_lookout: Lookout, _now_s: float) -> Effects:
    """Who freezes is waited for."""
    return []


def nobody_is_buried(*_arguments: object) -> None:
    """Who was counted out may come back."""


def everybody_is_dead(_starts: ColdStarts, _now_s: float) -> Whereabouts:
    """A save is loaded although a group has the state."""
    return Whereabouts.NOWHERE


def nobody_is_surely_dead(_starts: ColdStarts, _now_s: float) -> Whereabouts:
    """No save is ever loaded."""
    return Whereabouts.UNSURE


def each_its_own_save(*_arguments: object) -> bool:
    """What others load does not matter."""
    return False


def always_fresh(_starts: ColdStarts, _now_s: float) -> StartMode:
    """Whoever starts, starts at step 0."""
    return StartMode.FRESH


def told_before_decided(starts: ColdStarts, slot: Slot, save: SaveOffer, found: SavesFound | None) -> Outcome:
    """Which save it is goes to the group before it goes to disk."""
    return Outcome(answer=RESTORE(starts, slot, save, found).answer)


def record_stays(starts: ColdStarts, slot: Slot, save: SaveOffer, found: SavesFound | None) -> Outcome:
    """The job must reach the step that was lost before anybody may go on."""
    return _with_record(starts, slot, save, found, max_step=starts._book.record.max_step)


def ids_of_saves_do_not_count(
    starts: ColdStarts, slot: Slot, save: SaveOffer, found: SavesFound | None
) -> Outcome:
    """After the loss of a disk ids begin anew."""
    return _with_record(starts, slot, save, found, quorum_id=starts._book.record.quorum_id)


def _with_record(
    starts: ColdStarts, slot: Slot, save: SaveOffer, found: SavesFound | None, **changes: object
) -> Outcome:
    outcome = RESTORE(starts, slot, save, found)
    record = outcome.record and replace(outcome.record, **changes)  # type: ignore[arg-type]
    return replace(outcome, record=record)


def nobody_is_displaced(*_arguments: object) -> list[str]:
    """Who was told to load another save may come back with it."""
    return []


def waits_for_a_save_that_is_gone(starts: ColdStarts, restore: Restore) -> bool:
    """Whoever was told of a save is taken to load it as long as it lives."""
    told, slots = dict(restore.told), starts._table.slots.values()
    return any(slot.attached and (slot.id.key, digest_of(slot.id.text)) in told.items() for slot in slots)


def nobody_is_stranded(*_arguments: object) -> list[Slot]:
    """Who waits to heal from the dead is let wait."""
    return []


def without_a_lighthouse_is_forgotten(starts: ColdStarts, quorum_id: int) -> bool:
    """Saves of quorum 0 are shut out although nothing was forgotten."""
    return quorum_id <= starts._book.record.floor


def ids_of_torn_saves_do_not_count(starts: ColdStarts, quorum_id: int, found: SavesFound | None) -> int:
    """A save that cannot be loaded looks newer than those that follow."""
    return max(starts._book.record.quorum_id, quorum_id)


def nobody_is_waited_for(_starts: ColdStarts) -> bool:
    """Who finds no save starts at step 0, whatever others may find."""
    return False


RESTORE = ColdStarts._restore

MUTATIONS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "no minimum": (quorum, "_min_replicas", no_objection),
    "no majority": (quorum, "_no_majority", no_objection),
    "no record": (quorum, "_below_record", no_objection),
    "no warm-up": (quorum, "_warming_up", no_objection),
    "members are not waited for": (quorum, "_not_asking", no_objection),
    "expected groups are not waited for": (quorum, "_expected_groups", no_objection),
    "members in no order": (quorum, "_final_members", everybody_who_asks),
    "the id stays": (QuorumBook, "_is_change", never_changed),
    "told before written": (QuorumBook, "_propose", told_before_written),
    "nobody dies": (Table, "lose", nobody_dies),
    "calls are not taken back": (Slot, "withdraw", not_taken_back),
    "attempts end in silence": (EndedAttempts, "add", not_announced),
    "asking again means nothing": (JobMachine, "_say_asks_again", no_second_ask),
    "nobody looks out": (Lookout, "look", nobody_looks),
    "nobody is buried": (QuorumBook, "amend_lineage", nobody_is_buried),
    "everybody is dead": (ColdStarts, "_whereabouts", everybody_is_dead),
    "nobody is surely dead": (ColdStarts, "_whereabouts", nobody_is_surely_dead),
    "each its own save": (ColdStarts, "_is_being_loaded", each_its_own_save),
    "always fresh": (ColdStarts, "start_mode", always_fresh),
    "told before decided": (ColdStarts, "_restore", told_before_decided),
    "the record stays": (ColdStarts, "_restore", record_stays),
    "ids of saves do not count": (ColdStarts, "_restore", ids_of_saves_do_not_count),
    "ids of torn saves do not count": (ColdStarts, "_above", ids_of_torn_saves_do_not_count),
    "nobody is displaced": (ColdStarts, "_displaced", nobody_is_displaced),
    "a save that is gone is waited for": (ColdStarts, "_is_being_loaded", waits_for_a_save_that_is_gone),
    "nobody is stranded": (ColdStarts, "stranded", nobody_is_stranded),
    "quorum 0 is forgotten": (ColdStarts, "_is_forgotten", without_a_lighthouse_is_forgotten),
    "nobody is waited for": (ColdStarts, "_others_look", nobody_is_waited_for),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_machine_is_caught(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken = MUTATIONS[mutation]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises((AssertionError, KeyError)):
        live_all(SEEDS_PER_MUTATION)


def live_all(seeds: int) -> None:
    for seed in range(seeds):
        SimulatedJob(seed).live()
