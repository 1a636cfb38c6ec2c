"""The replicas of one job: who they are, who lives, who has replaced whom. Bounded, and no I/O."""

import hmac
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from lighthouse.effects import CloseStream, Effect, Happening, Note, Refuse, Tell
from lighthouse.lineage import Lineage
from lighthouse.liveness import Liveness
from lighthouse.model import JobRecord, Key, Notice, NoticeKind, Refusal, ReplicaId
from lighthouse.pace import PaceRules
from lighthouse.slot import Gone, Slot

Effects = list[Effect]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one job's tables and the durations that belong to them.

    A rank that was silent for `pulse_timeout_s` takes its group with it. Whoever was silent for
    `forget_after_s` loses its line in the table. The highest step is recorded at least every
    `step_record_s`; quorum id and members always at once. A quorum that is not ready for
    `waiting_note_s` is worth a line in the log. The start of a new job waits at most
    `look_timeout_s` for a group that looks for saves. `pace` says who stands still for too long.
    """

    heartbeat_timeout_s: float = 5.0
    pulse_timeout_s: float = 5.0
    max_replicas: int = 1024
    max_calls_per_replica: int = 4
    max_buried: int = 1024
    forget_after_s: float = 600.0
    step_record_s: float = 1.0
    waiting_note_s: float = 1.0
    look_timeout_s: float = 600.0
    pace: PaceRules = field(default_factory=PaceRules)


class Table:
    """One slot per replica. Reads like a guest book: nobody is in it twice."""

    def __init__(
        self, *, record: JobRecord, limits: Limits, on_end: Callable[[Slot, float], None] | None = None
    ) -> None:
        """`on_end` is told of each incarnation that no longer counts, and when that was."""
        self.slots: dict[Key, Slot] = {}
        self.roll = Liveness(limits.heartbeat_timeout_s)
        self.deaths: Counter[Gone] = Counter()
        self.lineage = Lineage(
            holders=record.holders,
            tombs=record.tombs,
            max_holders=limits.max_replicas,
            max_tombs=limits.max_buried,
        )
        self._job = record.job
        self._limits = limits
        self._on_end = on_end
        self._full_until_s = float("-inf")

    def enter(
        self, id: ReplicaId, now_s: float, *, keep: Callable[[Slot], bool], pulse_only: bool = False
    ) -> tuple[Slot | Refusal, Effects]:
        """The slot of this incarnation, which replaces an earlier one at once.

        `pulse_only`: it has just beaten. That takes no place from another: a late pulse of an
        older incarnation must not put out the newer one. A full table is first cleared of the
        silent, those excepted that `keep` holds for.
        """
        slot = self.slots.get(id.key)
        if slot is not None and slot.id.text == id.text:
            return (Refusal.EVICTED if slot.gone is Gone.EVICTED else slot), []
        refusal = self.lineage.verdict(id)
        if refusal is None and pulse_only and (slot is not None or self.lineage.is_held_by_another(id)):
            refusal = Refusal.SUPERSEDED
        if refusal is not None:
            return refusal, []
        if slot is not None:
            return self._replace(slot, id, now_s)
        if len(self.slots) >= self._limits.max_replicas and not self._make_room(now_s, keep):
            return Refusal.TABLE_FULL, []
        slot = self.slots[id.key] = Slot(id=id, returning=self.lineage.is_held_by(id))
        self.lineage.take(id)
        return slot, [self.note(Happening.APPEARED, slot)]

    def has_admitted(self, id: ReplicaId) -> bool:
        """Whether this incarnation has a place here, or is known to have lost it for good."""
        slot = self.slots.get(id.key)
        # In a time that does not tell where the secret differs.
        is_its = slot is not None and hmac.compare_digest(slot.id.text.encode(), id.text.encode())
        return is_its or self.lineage.verdict(id) is not None

    def on_stream(self, id: ReplicaId, stream: int) -> tuple[Slot | None, int]:
        """Whose open stream this is, slot and rank; None and 0 if it is none of this incarnation's."""
        slot = self.slots.get(id.key)
        rank = None if slot is None else slot.rank_of(stream)
        return (None, 0) if rank is None else (slot, rank)

    def hear(self, slot: Slot, now_s: float) -> Effects:
        """A sign of life. It ends a silence, but no death."""
        if slot.gone is not None and slot.gone is not Gone.SILENT:
            return []
        self.roll.heard(slot.id.key, now_s)
        if slot.gone is None:
            return []
        slot.gone = None
        return [self.note(Happening.HEARD_AGAIN, slot)]

    def lose(self, slot: Slot, gone: Gone, now_s: float, **fields: object) -> Effects:
        """An incarnation is over now. One that was lost before is not counted twice."""
        counts = slot.go(gone, now_s)
        self.roll.drop(slot.id.key)
        return [self._count(slot, **fields)] if counts else []

    def turn_away(self, id: ReplicaId) -> None:
        """One that does not belong here, and may have beaten before it was told so, leaves no trace."""
        slot = self.slots.get(id.key)
        if slot is None or slot.id.text != id.text or slot.lines or slot.calls:
            return
        del self.slots[id.key]
        self.roll.drop(id.key)
        self.lineage.bury(id, Refusal.SUPERSEDED)

    def evict(self, slot: Slot, cause: str, now_s: float) -> Effects:
        """Put an incarnation out for good and tell its ranks why."""
        notice = Notice(kind=NoticeKind.EVICTED, cause=cause)
        effects = self._send_away(slot, Refusal.EVICTED, notice)
        slot.gone = None if slot.gone is Gone.SILENT else slot.gone
        effects += self.lose(slot, Gone.EVICTED, now_s, why=cause)
        self.lineage.bury(slot.id, Refusal.EVICTED)
        return effects

    def mark_silent(self, now_s: float) -> tuple[list[Slot], Effects]:
        """Note those that have not been heard for the heartbeat timeout, and return them."""
        silent = [
            slot for key, slot in self.slots.items() if slot.gone is None and not self.roll.lives(key, now_s)
        ]
        effects: Effects = []
        for slot in silent:
            slot.go(Gone.SILENT, now_s)
            effects.append(self._count(slot))
        return silent, effects

    def frozen(self, now_s: float) -> list[tuple[Slot, int, float]]:
        """Slots with a rank whose stream is open and says nothing any more: which, for how long."""
        found: list[tuple[Slot, int, float]] = []
        for slot in self.slots.values():
            for rank, line in slot.lines.items():
                if line.pulse_s is not None and now_s - line.pulse_s >= self._limits.pulse_timeout_s:
                    found.append((slot, rank, now_s - line.pulse_s))
                    break
        return found

    def prune(self, now_s: float, silent_s: float, keep: Callable[[Slot], bool]) -> None:
        """Forget whoever has been gone for that long, holds nothing open and need not be kept."""
        for key, slot in list(self.slots.items()):
            silent = slot.gone is not None and now_s - slot.gone_s >= silent_s
            if silent and not slot.lines and not slot.calls and not keep(slot):
                del self.slots[key]
                self.roll.drop(key)

    def note(self, happening: Happening, slot: Slot, **fields: object) -> Note:
        """A line for the log about this replica."""
        shown = {"job": self._job, "replica": slot.id.label, "incarnation": slot.incarnations}
        return Note(happening=happening, fields=shown | fields)

    def _replace(self, old: Slot, id: ReplicaId, now_s: float) -> tuple[Slot, Effects]:
        notice = Notice(kind=NoticeKind.SUPERSEDED, cause=f"a newer incarnation of {id.label} is here")
        effects = self._send_away(old, Refusal.SUPERSEDED, notice)
        if old.gone is None:
            effects += self.lose(old, Gone.SUPERSEDED, now_s)
        self.lineage.bury(old.id, Refusal.SUPERSEDED)
        self.lineage.take(id)
        slot = self.slots[id.key] = Slot(id=id, incarnations=old.incarnations + 1, known=old.known)
        self.roll.drop(id.key)
        return slot, [*effects, self.note(Happening.APPEARED, slot)]

    def _send_away(self, slot: Slot, refusal: Refusal, notice: Notice) -> Effects:
        """End all that an incarnation holds open, with a word to each of its ranks."""
        effects: Effects = [Refuse(call=call, refusal=refusal) for call in slot.take_calls()]
        if slot.lines:
            effects.append(Tell(streams=slot.streams(), notice=notice))
        effects += [CloseStream(stream=stream, refusal=refusal) for stream in slot.streams()]
        slot.lines.clear()
        return effects

    def _make_room(self, now_s: float, keep: Callable[[Slot], bool]) -> bool:
        """Look for silent ones to forget, at most once a second: a flood must not buy CPU time."""
        if now_s >= self._full_until_s:
            self.prune(now_s, 0.0, keep)
            self._full_until_s = now_s + 1.0
        return len(self.slots) < self._limits.max_replicas

    def _count(self, slot: Slot, **fields: object) -> Note:
        assert slot.gone is not None
        self.deaths[slot.gone] += 1
        if self._on_end is not None:
            self._on_end(slot, slot.gone_s)
        return self.note(Happening.GONE, slot, cause=slot.gone.value, step=slot.step, **fields)
