"""What must hold whenever the simulated job goes back to a save, whatever happened before."""

from collections import defaultdict
from typing import TYPE_CHECKING

from lighthouse.model import ColdStart, ColdStartAnswer, Quorum, ReplicaId, SaveOffer, StartMode
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
        self._loaded: defaultdict[int, set[SaveOffer]] = defaultdict(set)

    def forget(self) -> None:
        """What was on record is gone, and with it who was told what."""
        self._told.clear()

    def welcomed(self, mode: StartMode) -> None:
        assert mode is not StartMode.FRESH or self._server.disk.max_step == 0, "steps are on record"

    def told(self, id: ReplicaId, answer: ColdStartAnswer) -> None:
        """A group is told how to start."""
        disk = self._server.disk
        assert answer.verdict is not ColdStart.FRESH or disk.max_step == 0, "steps are on record"
        if answer.verdict is ColdStart.RESTORE:
            assert disk.restore is not None, "on disk before anybody is told"
            assert disk.restore.save == answer.save
            self._told.setdefault(id.text, self._disaster)

    def decide(self, save: SaveOffer) -> None:
        """All are to load this save, once that is on disk."""
        record = self._server.machine.record
        newest = record.restore.save.step + 1 if record.restore else max(1, record.max_step)
        for launcher in self.launchers:
            group = launcher.group
            if group is not None and self._is_there(group):
                assert group.step < newest, "nobody had to load a save"
                assert self._told.get(group.id.text) != self._disaster, "one loads another save already"
        self.decided += 1

    def _is_there(self, group: "SimGroup") -> bool:
        """Whether it lives and the server must know that."""
        link, slot = group.link, self._server.machine.table.slots.get(group.id.key)
        if not group.alive or link is None or link.broken or group.frozen_rank or slot is None:
            return False
        awake = group.world.now_s - group.frozen_until_s > LONG_AWAKE_S
        heard = slot.id == group.id and slot.gone not in FINAL and len(link.streams) == 2
        return heard and awake and not (link.up_cut or link.down_cut)

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
