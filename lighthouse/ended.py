"""Which attempts are over, and why: so that each is said once, and late comers can be told too."""

from collections import OrderedDict
from collections.abc import Iterable

from lighthouse.effects import Effect, Happening, Note, Tell
from lighthouse.model import Notice, NoticeKind
from lighthouse.slot import Slot

_MAX_REMEMBERED = 16


class EndedAttempts:
    """The last attempts that ended before their quorum committed, by quorum id."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._causes: OrderedDict[int, str] = OrderedDict()
        self.count = 0

    def __contains__(self, quorum_id: int) -> bool:
        return quorum_id in self._causes

    def add(self, quorum_id: int, cause: str, slots: Iterable[Slot]) -> list[Effect]:
        """Note that it is over, and tell the ranks of these slots, unless it was over before."""
        if quorum_id in self._causes:
            return []
        self._causes[quorum_id] = cause
        self.count += 1
        while len(self._causes) > _MAX_REMEMBERED:
            self._causes.popitem(last=False)
        streams = tuple(stream for slot in slots for stream in slot.streams())
        if not streams:
            return []
        fields = {"job": self._job, "quorum_id": quorum_id, "cause": cause}
        note = Note(happening=Happening.ATTEMPT_OVER, fields=fields)
        return [Tell(streams=streams, notice=over_notice(quorum_id, cause)), note]

    def since(self, quorum_id: int) -> list[Notice]:
        """The notices of this attempt and later ones, for a rank that may have missed them."""
        return [over_notice(id, cause) for id, cause in sorted(self._causes.items()) if id >= quorum_id]


def over_notice(quorum_id: int, cause: str) -> Notice:
    """The attempt of this quorum, and of all before it, is over."""
    return Notice(kind=NoticeKind.ATTEMPT_OVER, quorum_id=quorum_id, cause=cause)
