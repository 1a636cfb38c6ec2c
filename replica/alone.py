"""A group that trains without a Lighthouse and without peers: the step without fault tolerance."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lighthouse.client import ColdStart, ColdStartAnswer, Phase, SavesFound
from replica.bridge.manager import Start
from replica.mesh import Ranks
from replica.rounds import Peer
from replica.streams import StartCheck


class NoPeers:
    """All-reduce over one group: there is nothing to add. Never blocks."""

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """The sum over one group is what it brings."""

    def max_in_place(self, tensor: torch.Tensor) -> None:
        """The maximum over one group is what it brings."""


class AloneBridge:
    """Stands in for `ManagerBridge`: attempts begin at once, and the vote is among the group's ranks.

    `step` is asked for this rank's current step. Belongs to the training thread.
    """

    replica_id = ""

    def __init__(self, *, group: int, ranks: Ranks, step: Callable[[], int]) -> None:
        self._group = group
        self._ranks = ranks
        self._step = step
        self.quorum_id = 1
        self.process_group = NoPeers()

    def begin(self) -> Start:
        """The one member of the one quorum. Does not block."""
        peer = Peer(group=self._group, step=self._step())
        return Start(quorum_id=self.quorum_id, changed=False, peers=(peer,), configured=True, error=None)

    def set_step(self, step: int) -> None:
        """Nothing to do: only the group counts its steps."""

    def vote(self, willing: bool) -> bool:
        """Whether every rank is willing. A collective of the group. Raises RestartError."""
        return all(row[0] for row in self._ranks.share([willing]))

    def close(self) -> None:
        """Nothing to do."""


class AloneStream:
    """Stands in for `LighthouseStream` where nobody listens. Never blocks."""

    tells_deaths = False
    must_heal = False

    def __init__(self, *, saves: bool = False) -> None:
        """`saves`: whether there may be saves of this job."""
        self._saves = saves

    def wait_until_reachable(self) -> None:
        """Nobody has to be reached."""

    def attach(self, replica_id: str, group_world_size: int, fingerprint: str, platform: str) -> StartCheck:
        """There is no record of an earlier life but its saves."""
        return StartCheck.COLD if self._saves else StartCheck.GO_ON

    def propose(self, found: SavesFound | None) -> ColdStartAnswer:
        """Nobody else can have the state: begin with the newest save, or afresh where there never was one."""
        if found is None:
            return ColdStartAnswer(verdict=ColdStart.LOOK)
        if found.offer is None:
            return ColdStartAnswer(verdict=ColdStart.LOST if found.unusable else ColdStart.FRESH)
        return ColdStartAnswer(verdict=ColdStart.RESTORE, save=found.offer)

    def status(self) -> Mapping[str, Any]:
        """There is no other group, of no job."""
        return {"jobs": []}

    def saved(self, step: int, quorum_id: int, size: int, seconds: float) -> None:
        """Nobody is told."""

    def save_failed(self, step: int, reason: str) -> None:
        """Nobody is told."""

    def watch(self, replica_id: str, group_world_size: int, fingerprint: str, platform: str) -> None:
        """Nothing will be heard."""

    def progress(self, step: int, phase: Phase, rounds: int | None = None) -> None:
        """Nobody is told."""

    def abandon(self, quorum_id: int, cause: str) -> None:
        """Nobody is told."""

    def goodbye(self, *, finished: bool, step: int, may_save_s: float = 0.0) -> None:
        """Nobody is told."""

    def left(self) -> None:
        """Nobody is told."""

    def close(self) -> None:
        """Nothing to do."""
