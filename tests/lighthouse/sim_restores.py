"""What must hold whenever the simulated job goes back to a save, whatever happened before."""

from collections import defaultdict
from typing import TYPE_CHECKING

from lighthouse.model import ColdStart, ColdStartAnswer, Quorum, ReplicaId, SaveOffer, SavesFound, StartMode
from lighthouse.slot import FINAL

if TYPE_CHECKING:
    from sim_group import SimGroup
    from sim_launcher import Launcher
    from sim_server import SimServer

# Twice the heartbeat timeout of the simulation: so long ago at least a group was frozen.
LONG_AWAKE_S = 4.0


class RestoreJudge:
    """A disaster begins when a save is decided on, and ends with the next quorum."""

    def __init__(self, server: "SimServer") -> None:
        self.launchers: list[Launcher] = []
        self.decided = 0
        self._server = server
        self._disaster = 0
        self._told: dict[str, int] = {}
        self._look: set[str] = set()
        self._written: SaveOffer | None = None
        self._loaded: defaultdict[int, set[SaveOffer]] = defaultdict(set)

    def forget(self) -> None:
        """What was on record is gone, and with it who was told what."""
        self._told.clear()
        self._written = None

    def written(self, save: SaveOffer) -> None:
        """That all are to load this save is on disk."""
        self._written = save

    def welcomed(self, mode: StartMode) -> None:
        assert mode is not StartMode.FRESH or self._server.disk.max_step == 0, "steps are on record"

    def server_started(self) -> None:
        """A new server does not know who was looking when the last one died."""
        self._look.clear()

    def told(self, id: ReplicaId, answer: ColdStartAnswer, found: SavesFound | None) -> None:
        """A group is told how to start, which has found these saves."""
        disk = self._server.disk
        self._look.discard(id.text)
        if answer.verdict is ColdStart.LOOK:
            self._look.add(id.text)
        if answer.verdict is ColdStart.FRESH:
            assert disk.max_step == 0, "steps are on record"
            assert found is not None
            assert found.offer is None, "nothing was forgotten"
            assert not any(map(self._looks, self.launchers)), "another still looks for a save"
        if answer.verdict in (ColdStart.FRESH, ColdStart.RESTORE) and found is not None:
            assert disk.quorum_id >= found.highest_quorum_id, "ids go on above all that lie there"
        if answer.verdict is ColdStart.RESTORE:
            assert self._written == answer.save, "on disk before anybody is told"
            if disk.restore is not None:  # no quorum came of it at once
                self._told.setdefault(id.text, self._disaster)

    def decide(self, save: SaveOffer) -> None:
        """All are to load this save, once that is on disk."""
        record = self._server.machine.record
        newest = record.restore.save.step + 1 if record.restore else max(1, record.max_step)
        for launcher in self.launchers:
            group = launcher.group
            if group is not None and self._is_there(group):
                assert group.step < newest, "nobody had to load a save"
                loads = self._told.get(group.id.text) == self._disaster
                assert not loads or group.cold_start.has_found_it_gone, "one loads another save already"
        self.decided += 1

    def _is_there(self, group: "SimGroup") -> bool:
        """Whether it lives and the server must know that."""
        link, slot = group.link, self._server.machine.table.slots.get(group.id.key)
        if not group.alive or link is None or link.broken or group.frozen_rank or slot is None:
            return False
        awake = group.world.now_s - group.frozen_until_s > LONG_AWAKE_S
        heard = slot.id == group.id and slot.gone not in FINAL and len(link.streams) == 2
        return heard and awake and not (link.up_cut or link.down_cut)

    def _looks(self, launcher: "Launcher") -> bool:
        """Whether the server must know that this group looks for saves and has not answered.

        It does not where it has forgotten the group meanwhile.
        """
        group, slot = launcher.group, self._server.machine.table.slots.get(launcher.number)
        looks = group is not None and group.id.text in self._look and self._is_there(group)
        return looks and slot is not None and slot.attached and not slot.returning

    def issued(self, quorum: Quorum) -> None:
        groups = [launcher.group for launcher in self.launchers if launcher.group is not None]
        loaded = {group.id.text: group.cold_start.loaded for group in groups}
        for member in quorum.members:
            disaster, save = self._told.pop(member.id.text, None), loaded.get(member.id.text)
            if disaster is not None and save is not None and member.step == save.step:
                self._loaded[disaster].add(save)
                assert len(self._loaded[disaster]) == 1, "all load the same save"
                assert quorum.quorum_id > save.quorum_id, "ids rise above those of the save"
        self._disaster = self.decided
