"""Whether a group that attaches belongs to the job, which learns from it what nobody has said before."""

from lighthouse.effects import Happening, Note
from lighthouse.identity import Field, Mismatch, identity_of, merge, mismatch
from lighthouse.model import Hello, Refusal, ReplicaId
from lighthouse.quorum_book import QuorumBook
from lighthouse.situation import unheard
from lighthouse.table import Effects, Table


class Admission:
    """Compares what a group says of itself with what is on record. Time is handed in; no I/O."""

    def __init__(self, *, table: Table, book: QuorumBook, warm_until_s: float) -> None:
        self._table = table
        self._book = book
        self._warm_until_s = warm_until_s

    def check(self, id: ReplicaId, hello: Hello, now_s: float) -> Mismatch | Refusal | None:
        """Why this group may not attach now, or None."""
        others = (slot for slot in self._table.slots.values() if slot.id.text != id.text)
        alive = any(slot.gone is None and slot.lines for slot in others)
        # A server that has just begun has not heard yet who is running.
        running = alive or (now_s < self._warm_until_s and bool(unheard(self._table, self._book.last)))
        record, offered = self._book.record, identity_of(hello)
        if running or record.max_step > 0:
            stranger = mismatch(record.job, offered, record.identity, running=running)
            if stranger is not None:
                may_be_right_soon = not alive and stranger.field is Field.GROUP_WORLD_SIZE
                return Refusal.WARMING_UP if may_be_right_soon else stranger
            offered = merge(record.identity, offered, running=running)
        self._book.journal.amend(identity=offered)
        return None

    def notes(self, id: ReplicaId, stranger: Mismatch | Refusal) -> Effects:
        """A line for the log about a group that does not belong."""
        if isinstance(stranger, Refusal):
            return []
        fields = {"job": self._book.record.job, "replica": id.label, "field": stranger.field.value}
        return [Note(happening=Happening.REFUSED, fields={**fields, "why": stranger.sentence()})]
