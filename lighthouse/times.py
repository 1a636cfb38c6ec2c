"""Where the time of a job went, and what deaths have cost of it. Bounded, and no I/O."""

from collections.abc import Mapping

from lighthouse.accounts import Accounts, Seconds
from lighthouse.model import Key, ReplicaId
from lighthouse.slot import Gone, Slot
from lighthouse.table import Table
from lighthouse.toll import Toll


class Times:
    """Hears what groups say of their time, and which of them no longer count. Time is handed in."""

    def __init__(self, *, max_groups: int, since_s: float) -> None:
        """`since_s` is when the server started."""
        self.toll = Toll(max_groups=max_groups)
        self._accounts = Accounts(max_groups=max_groups, since_s=since_s)

    def told(
        self, table: Table, id: ReplicaId, stream: int, seconds: Mapping[str, float], now_s: float
    ) -> None:
        """A group says where the time of its present life went so far, in seconds by cause."""
        slot, _ = table.on_stream(id, stream)
        if slot is not None and isinstance(id.key, int):
            self._accounts.report(id, seconds, now_s)
            self.toll.told(id.key, self._accounts.of(id.key, now_s), now_s)

    def ended(self, slot: Slot, now_s: float) -> None:
        """An incarnation no longer counts: time goes on without it, and if it has died, that costs."""
        left = slot.gone in (Gone.LEFT, Gone.FINISHED)
        if not left and isinstance(slot.id.key, int):
            seconds = self._accounts.of(slot.id.key, now_s)
            self.toll.died(slot.id.key, slot.step, str(slot.gone), seconds, now_s)
        self._accounts.end(slot.id, now_s, left=left)

    def finish(self, now_s: float) -> None:
        """The job is finished: nobody is missed from now on."""
        self._accounts.finish(now_s)

    def of(self, key: Key, now_s: float) -> Seconds:
        """Seconds by cause of one group; empty where it has said nothing."""
        return self._accounts.of(key, now_s)

    def by_group(self, now_s: float) -> dict[int, Seconds]:
        """Seconds by cause, by group. None ever falls."""
        return self._accounts.by_group(now_s)

    def total(self, now_s: float) -> Seconds:
        """Seconds by cause of all groups together."""
        return self._accounts.total(now_s)
