"""What is known of a job's saves: the newest one, and how many have failed. Bounded, and no I/O."""

from collections import OrderedDict
from dataclasses import dataclass

from lighthouse.effects import Happening
from lighthouse.model import LARGEST_NUMBER, Key, ReplicaId
from lighthouse.slot import FINAL, Slot
from lighthouse.table import Effects, Table

_LONGEST_S = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A save that is complete and durable: how long it took, and how old it was when that was said.

    Raises ValueError with one sentence for numbers that cannot be.
    """

    step: int
    quorum_id: int
    bytes: int
    seconds: float
    age_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= number < LARGEST_NUMBER for number in (self.step, self.quorum_id, self.bytes)):
            raise ValueError("malformed Saved: step, quorum_id and bytes must be at least 0")
        if not (0 <= self.seconds < _LONGEST_S and 0 <= self.age_s < _LONGEST_S):
            raise ValueError("malformed Saved: seconds and age_s must be at least 0")

    @property
    def order(self) -> tuple[int, int]:
        """By this the saves of a job are ordered: quorum ids rise over its life."""
        return (self.quorum_id, self.step)


class Saves:
    """What the groups have said since this server started. Time is handed in."""

    def __init__(self, *, table: Table, max_groups: int) -> None:
        self.newest: Saved | None = None
        self.failures: OrderedDict[Key, int] = OrderedDict()
        self._table = table
        self._max_groups = max_groups
        self._complete_at_s = 0.0
        self._expected_since_s: float | None = None

    def expect(self, now_s: float) -> None:
        """A group that makes saves is here."""
        if self._expected_since_s is None:
            self._expected_since_s = now_s

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the newest save was complete, or None if there was none."""
        return None if self.newest is None else max(0.0, now_s - self._complete_at_s)

    def unsaved_s(self, now_s: float) -> float | None:
        """For how long nothing has been saved, as far as known; None for a job that makes no saves."""
        if self.newest is not None or self._expected_since_s is None:
            return self.age_s(now_s)
        return now_s - self._expected_since_s

    def saved(self, id: ReplicaId, stream: int, save: Saved, now_s: float) -> Effects:
        """A group has made a save. It says so again on each new stream, which changes nothing."""
        slot, newest = self._speaker(id, stream, now_s), self.newest
        if slot is None or (newest is not None and save.order <= newest.order):
            return []
        self.newest, self._complete_at_s = save, now_s - save.age_s
        fields = {"step": save.step, "quorum_id": save.quorum_id, "bytes": save.bytes}
        return [self._table.note(Happening.SAVED, slot, **fields, seconds=round(save.seconds, 3))]

    def failed(self, id: ReplicaId, stream: int, step: int, cause: str, now_s: float) -> Effects:
        """A save of a group has failed; it, too, is said again on each new stream."""
        slot = self._speaker(id, stream, now_s)
        if slot is None or step <= slot.failed_save_step:
            return []
        slot.failed_save_step = step
        self.failures[id.key] = self.failures.pop(id.key, 0) + 1
        while len(self.failures) > self._max_groups:
            self.failures.popitem(last=False)
        return [self._table.note(Happening.SAVE_FAILED, slot, step=step, cause=cause)]

    def _speaker(self, id: ReplicaId, stream: int, now_s: float) -> Slot | None:
        slot, rank = self._table.on_stream(id, stream)
        if slot is None or slot.gone in FINAL:
            return None
        slot.lines[rank].speak(now_s)
        return slot
