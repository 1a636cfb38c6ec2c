"""One try at a step in the simulation: who is in it, and who computes which round."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lighthouse.model import Quorum, ReplicaId

if TYPE_CHECKING:
    from sim_group import SimGroup

ROUNDS = 4


@dataclass(eq=False)
class Attempt:
    """One try at a step: it commits when all its members have come to the reduce."""

    quorum: Quorum
    groups: list["SimGroup"] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)

    def is_complete(self) -> bool:
        return {member.id.text for member in self.quorum.members} <= self.reached


def dealt(quorum: Quorum) -> list[ReplicaId]:
    """Who computes which round of the step: the members that are up to date take turns."""
    ids = [member.id for member in quorum.members if member.step == quorum.max_step]
    return [ids[number % len(ids)] for number in range(ROUNDS)]
