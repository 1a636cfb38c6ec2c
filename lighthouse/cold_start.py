"""How a group starts when nobody may be left from whom it could heal: one decision for all. Pure.

Reads like the opening of a sealed will: only when certainly nobody lives who knows better, one is
opened, which one is written down before the first heir is told, and all get to read the same.
"""

from dataclasses import dataclass, replace
from enum import Enum

from lighthouse.effects import Happening, Note
from lighthouse.lineage import digest_of
from lighthouse.model import (
    ColdStart,
    ColdStartAnswer,
    JobRecord,
    Key,
    Refusal,
    ReplicaId,
    Restore,
    SaveOffer,
    SavesFound,
    StartMode,
)
from lighthouse.quorum import Rules
from lighthouse.quorum_book import QuorumBook
from lighthouse.saves import Saved
from lighthouse.situation import unheard
from lighthouse.slot import FINAL, Gone, Slot
from lighthouse.table import Effects, Limits, Table


class Whereabouts(Enum):
    """Whether a group lives that has the newest state. UNSURE: it was heard, but not just now."""

    HERE = "here"
    UNSURE = "unsure"
    NOWHERE = "nowhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The answer, and the record that must be durable before it is given, if any."""

    answer: ColdStartAnswer
    record: JobRecord | None = None


NOT_ATTACHED_AGAIN = ColdStartAnswer(verdict=ColdStart.WAIT, cause="this group is not attached again yet")
_MOST_SAID = 1024


class EmptyHanded:
    """Which groups have looked for saves and found none. Forgotten when nobody asks any more."""

    def __init__(self, rules: Rules, heartbeat_timeout_s: float) -> None:
        self._expected = rules.expected_groups
        self._patience_s = rules.join_timeout_s if self._expected else heartbeat_timeout_s
        self._forget_after_s = max(rules.join_timeout_s, heartbeat_timeout_s)
        self._said: set[Key] = set()
        self._first_s = self._last_s = float("-inf")

    def say(self, key: Key, now_s: float) -> bool:
        """This group has found none; whether enough have now had their say.

        That is as many as are expected, or all that come while there is patience.
        """
        if now_s - self._last_s > self._forget_after_s:
            self._said.clear()
        if not self._said:
            self._first_s = now_s
        self._last_s = now_s
        if len(self._said) < _MOST_SAID:
            self._said.add(key)
        return 0 < self._expected <= len(self._said) or self.waited_s(now_s) >= self._patience_s

    def waited_s(self, now_s: float) -> float:
        """How long ago the first of them said so."""
        return now_s - self._first_s

    def __len__(self) -> int:
        return len(self._said)


class LastSaves:
    """Which incarnations have said goodbye, and may still save the state that they leave behind."""

    def __init__(self, most: int) -> None:
        """No more than `most` are remembered, those that may take longest."""
        self._most = most
        self._until_s: dict[str, float] = {}

    def begin(self, id: ReplicaId, until_s: float, now_s: float) -> None:
        """This one may save until then."""
        self._until_s[id.text] = until_s
        kept = sorted(self._until_s.items(), key=lambda each: each[1])[-self._most :]
        self._until_s = {text: end_s for text, end_s in kept if end_s > now_s}

    def end(self, id: ReplicaId) -> bool:
        """This one saves nothing any more; whether it might have."""
        return self._until_s.pop(id.text, None) is not None

    def may_come(self, now_s: float) -> bool:
        """Whether any of them may still save."""
        return any(now_s < until_s for until_s in self._until_s.values())

    def __len__(self) -> int:
        return len(self._until_s)


class ColdStarts:
    """What the starting groups of one job are told. Time is handed in."""

    def __init__(
        self, *, table: Table, book: QuorumBook, rules: Rules, limits: Limits, warm_until_s: float
    ) -> None:
        """Before `warm_until_s` nobody counts as dead because this server has not heard of it yet."""
        self._table = table
        self._book = book
        self._rules = rules
        self._limits = limits
        self._warm_until_s = warm_until_s
        self._empty_handed = EmptyHanded(rules, limits.heartbeat_timeout_s)
        self._last_saves = LastSaves(limits.max_replicas)
        self._stranded_since_s: float | None = None

    # Who has the state.

    def start_mode(self, now_s: float) -> StartMode:
        """How a group that attaches is to start."""
        record = self._book.record
        if record.finished_step is not None:
            return StartMode.FINISHED
        if self._whereabouts(now_s) is not Whereabouts.NOWHERE:
            return StartMode.HEAL
        is_new = record.max_step == 0 and record.restore is None
        return StartMode.FRESH if is_new else StartMode.RESTORE

    def _whereabouts(self, now_s: float) -> Whereabouts:
        """Whether the newest state lives, as far as this server can know."""
        found = {self._standing(slot, now_s) for slot in self._holders()}
        if Whereabouts.HERE in found:
            return Whereabouts.HERE
        missing = now_s < self._warm_until_s and bool(unheard(self._table, self._book.last))
        unsure = missing or self.awaits_save(now_s) or Whereabouts.UNSURE in found
        return Whereabouts.UNSURE if unsure else Whereabouts.NOWHERE

    def _holders(self) -> list[Slot]:
        """Incarnations that have the newest state, if they live.

        One of the last quorum may be a step behind the others, which died before they passed it on.
        Whoever loads a save as decided is no holder: that holds for all alike until a quorum.
        """
        record, slots = self._book.record, self._table.slots.values()
        if record.restore is not None:
            return [slot for slot in slots if slot.step > record.restore.save.step]
        newest, first = max(1, record.max_step), min(1, record.max_step - 1)
        return [s for s in slots if s.step >= newest or (self._book.holds(s) and s.step >= first)]

    def _standing(self, slot: Slot, now_s: float) -> Whereabouts:
        """Whether this incarnation lives. One that beats no more, but whose stream speaks, may."""
        if slot.gone not in (None, Gone.SILENT):
            return Whereabouts.NOWHERE
        age_s, timeout_s = self._table.roll.age_s(slot.id.key, now_s), self._limits.heartbeat_timeout_s
        if age_s is not None and age_s < timeout_s / 2:
            return Whereabouts.HERE
        signs_s = [now_s - line.pulse_s for line in slot.lines.values() if line.pulse_s is not None]
        signs_s += [] if age_s is None else [age_s]
        return Whereabouts.UNSURE if min(signs_s, default=timeout_s) < timeout_s else Whereabouts.NOWHERE

    def stranded(self, now_s: float, newest: Saved | None) -> list[Slot]:
        """Groups that came to heal and have waited one heartbeat timeout with nobody left to heal from.

        Those that had the state died after these had started; started again, they are told of a save.
        `newest` is the newest one known: who has a state, but was left behind, loses nothing by it.
        """
        restore, saved_step = self._book.record.restore, 0 if newest is None else newest.step
        waiting = [
            slot
            for slot in self._table.slots.values()
            if slot.calls and slot.lines and slot.step <= saved_step and self._is_behind(slot)
        ]
        coming = restore is not None and self._is_being_loaded(restore)
        gone = self._whereabouts(now_s) is Whereabouts.NOWHERE and now_s >= self._warm_until_s
        if self._book.record.max_step == 0 or not waiting or coming or not gone:
            self._stranded_since_s = None
            return []
        if self._stranded_since_s is None:
            self._stranded_since_s = now_s
        return waiting if now_s - self._stranded_since_s >= self._limits.heartbeat_timeout_s else []

    def _is_behind(self, slot: Slot) -> bool:
        """Whether it has no state, or one from which it may not go on."""
        return slot.step == 0 or (slot.step < self._book.record.max_step and not self._book.holds(slot))

    def may_save(self, id: ReplicaId, stream: int, may_save_s: float, now_s: float) -> None:
        """The group on this stream is about to say goodbye, and may save its state for so long after it.

        Until then, or until it saves no more, nobody goes back to an older one, whoever has its place.
        """
        slot, _ = self._table.on_stream(id, stream)
        if slot is not None and slot.gone not in FINAL and may_save_s > 0:
            self._last_saves.begin(id, now_s + may_save_s, now_s)

    def saves_no_more(self, id: ReplicaId) -> bool:
        """The last save of this one is there, or will not come; whether it was waited for."""
        return self._last_saves.end(id)

    def awaits_save(self, now_s: float) -> bool:
        """Whether one that has left may still save its state."""
        return self._last_saves.may_come(now_s)

    # Who is told what.

    def propose(
        self, id: ReplicaId, found: SavesFound | None, now_s: float
    ) -> tuple[Outcome | Refusal, Effects]:
        """A group asks how to start. `found`: what it has seen, if it has looked for saves.

        The record of an Outcome must be on disk, and `recorded` called, before the answer is given.
        """
        slot = self._caller(id, now_s)
        if not isinstance(slot, Slot):
            return slot, []
        effects = self._table.hear(slot, now_s)
        return self._answer(slot, found, now_s), effects

    def _caller(self, id: ReplicaId, now_s: float) -> Slot | Outcome | Refusal:
        """The slot of an incarnation that asks, if it is attached; else what it is to be told."""
        slot = self._table.slots.get(id.key)
        if slot is None or slot.id.text != id.text:
            superseded = slot is not None or self._table.lineage.is_held_by_another(id)
            refusal = self._table.lineage.verdict(id) or (Refusal.SUPERSEDED if superseded else None)
        else:
            refusal = _REFUSED.get(slot.gone) if slot.gone is not None else None
            if refusal is None and slot.attached:
                return slot
        if refusal is not None:
            return refusal
        if now_s < self._warm_until_s or (slot is not None and slot.broken):
            return Outcome(answer=NOT_ATTACHED_AGAIN)
        return Refusal.UNKNOWN

    def _answer(self, slot: Slot, found: SavesFound | None, now_s: float) -> Outcome:
        record, slot.looks = self._book.record, False
        if record.finished_step is not None:
            return _say(ColdStart.FINISHED, f"step {record.finished_step} was the last")
        whereabouts = self._whereabouts(now_s)
        if whereabouts is Whereabouts.HERE:
            return _say(ColdStart.HEAL, "a group that has the state lives")
        if self.awaits_save(now_s):
            return _say(ColdStart.WAIT, "a group that has left may still save the state")
        if whereabouts is Whereabouts.UNSURE or now_s < self._warm_until_s:
            return _say(ColdStart.WAIT, "a group that has the state may live")
        if record.restore is not None and self._is_being_loaded(record.restore):
            return self._restore(slot, record.restore.save, found)
        if found is None:
            slot.looks = True
            return _say(ColdStart.LOOK, "no group lives that has the state")
        if found.offer is None:
            return self._none_found(slot, "no complete save was found", found, now_s)
        if self._is_forgotten(found.offer.quorum_id):
            cause = f"{found.offer.name} is from before the job was forgotten, up to quorum {record.floor}"
            return self._none_found(slot, cause, found, now_s)
        return self._restore(slot, found.offer, found)

    def _is_forgotten(self, quorum_id: int) -> bool:
        """Whether the job was forgotten after a save of this quorum was made.

        Those of a job that trained without a Lighthouse may have quorum id 0.
        """
        floor = self._book.record.floor
        return floor > 0 and quorum_id <= floor

    def _is_being_loaded(self, restore: Restore) -> bool:
        """Whether an incarnation is still attached that was told to load it, and may do so.

        One that asks for a quorum below its step has found it gone, and wants to heal from others.
        """
        slots, step = self._table.slots, restore.save.step
        return any(
            (slot := slots.get(key)) is not None
            and slot.attached
            and digest_of(slot.id.text) == digest
            and not (slot.has_asked and slot.step < step)
            for key, digest in restore.told
        )

    def _restore(self, slot: Slot, save: SaveOffer, found: SavesFound | None) -> Outcome:
        self._book.amend_lineage()
        record, digest = self._book.record, digest_of(slot.id.text)
        assert isinstance(slot.id.key, int)
        before = record.restore if record.restore is not None and record.restore.save == save else None
        told = {} if before is None else dict(before.told)
        answer = ColdStartAnswer(
            verdict=ColdStart.RESTORE, save=save, cause=f"all groups load the save of step {save.step}"
        )
        if told.get(slot.id.key) == digest:
            return Outcome(answer=answer)
        told[slot.id.key] = digest
        slot.looks = True  # until it is on disk
        kept = tuple(told.items())[-self._limits.max_replicas :]
        changed = replace(
            record,
            quorum_id=self._above(save.quorum_id, found) or self._book.unused_quorum_id,
            max_step=save.step,
            members=(),
            tombs=record.tombs + tuple((each, Refusal.EVICTED) for each in self._displaced(save)),
            restore=Restore(save=save, told=kept),
        )
        return Outcome(answer=answer, record=changed)

    def _above(self, quorum_id: int, found: SavesFound | None) -> int:
        """The quorum id that the next one is to follow: no save that lies there may look newer than it."""
        seen = 0 if found is None else found.highest_quorum_id
        return max(self._book.record.quorum_id, quorum_id, seen)

    def _displaced(self, save: SaveOffer) -> list[str]:
        """Hashes of those that were told to load another save, and are gone or have not found it.

        Should one of them come back with that state, it must not meet those that load this one.
        """
        restore = self._book.record.restore
        return [] if restore is None or restore.save == save else [digest for _, digest in restore.told]

    def _none_found(self, slot: Slot, cause: str, found: SavesFound, now_s: float) -> Outcome:
        record, empty_handed = self._book.record, self._empty_handed
        all_said = empty_handed.say(slot.id.key, now_s)
        others_look = self._others_look()
        if record.max_step == 0 and record.restore is None:
            # What was on record may be lost. But one that cannot see its store must not hold up all.
            if not others_look or empty_handed.waited_s(now_s) >= self._limits.look_timeout_s:
                return self._begin(cause, found)
        elif all_said and not others_look:
            return _say(ColdStart.LOST, f"step {record.max_step} is on record, nobody has it, and {cause}")
        seen = f"{len(self._empty_handed)} of {self._rules.expected_groups or 'any number of'} groups"
        return _say(ColdStart.WAIT, f"{cause}, and others may find one: {seen} have looked")

    def _begin(self, cause: str, found: SavesFound) -> Outcome:
        """No step is on record: start at step 0, unless what was on record may be lost with its saves."""
        record, quorum_id = self._book.record, self._above(0, found)
        said = _say(ColdStart.FRESH, f"no step is on record and {cause}")
        if found.unusable and not self._is_forgotten(found.highest_quorum_id):
            cause = "no step is on record, but there are saves, and none of them can be loaded"
            said = _say(ColdStart.LOST, cause)
        if quorum_id == record.quorum_id:
            return said
        # Also with LOST: to forget the job is to forget these saves.
        return replace(said, record=replace(record, quorum_id=quorum_id))

    def _others_look(self) -> bool:
        """Whether others were told to look for saves, and have not answered."""
        return any(each.looks and each.attached for each in self._table.slots.values())

    # Once it is on disk.

    def recorded(self, id: ReplicaId, record: JobRecord, now_s: float) -> Effects:
        """The record of what this group is told is durable."""
        before, restore, slot = self._book.record.restore, record.restore, self._table.slots.get(id.key)
        if slot is not None:
            slot.looks = False
        if restore is None or (before is not None and before.save == restore.save):
            self._book.journal.adopt(record, now_s)
            return []
        fields = {"step": restore.save.step, "save": restore.save.name, "group": id.key}
        note = Note(happening=Happening.RESTORE_DECIDED, fields={"job": record.job, **fields})
        displaced = self._put_out(self._displaced(restore.save), now_s)
        return [note, *displaced, *self._book.begin_anew(record, "the job goes back to a save", now_s)]

    def _put_out(self, digests: list[str], now_s: float) -> Effects:
        effects: Effects = []
        cause = "all load another save than it was told of: start again"
        for slot in self._table.slots.values():
            if digest_of(slot.id.text) in digests:
                effects += self._table.evict(slot, cause, now_s)
        for digest in digests:
            self._table.lineage.bury_digest(digest, Refusal.EVICTED)
        return effects


_REFUSED = {
    Gone.SUPERSEDED: Refusal.SUPERSEDED,
    Gone.EVICTED: Refusal.EVICTED,
    Gone.LEFT: Refusal.LEFT,
    Gone.FINISHED: Refusal.LEFT,
}


def _say(verdict: ColdStart, cause: str) -> Outcome:
    return Outcome(answer=ColdStartAnswer(verdict=verdict, cause=cause))
