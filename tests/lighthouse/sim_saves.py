"""The store that all groups of the simulation write their saves to. Only complete saves are ever seen."""

from typing import TYPE_CHECKING

from sim_attempt import Attempt
from sim_world import World

from lighthouse.lineage import digest_of
from lighthouse.model import SaveOffer

if TYPE_CHECKING:
    from sim_group import SimGroup

SAVE_EVERY = 3


class SimSaves:
    """Newest last, by quorum id and step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._complete: list[SaveOffer] = []

    def committed(self, group: "SimGroup", attempt: Attempt) -> None:
        """A group has committed a step; now and then its first member saves it in the background."""
        writer = attempt.quorum.members[0].id.text == group.id.text
        save = SaveOffer(
            name=f"step-{group.step:06d}-quorum-{attempt.quorum.quorum_id:016d}-{digest_of(group.id.text)[:8]}",
            step=group.step,
            quorum_id=attempt.quorum.quorum_id,
        )
        if not self._complete:
            self._publish(save)
        elif writer and group.step % SAVE_EVERY == 0:
            delay_s = self._world.random.uniform(0.1, 1.0)
            self._world.after(delay_s, lambda: self._publish(save) if group.alive else None)

    def look(self) -> SaveOffer | None:
        """The newest one; a listing may trail by one."""
        trails = len(self._complete) > 1 and self._world.chance(0.3)
        return self._complete[-2 if trails else -1] if self._complete else None

    def _publish(self, save: SaveOffer) -> None:
        if not self._complete or _order(save) > _order(self._complete[-1]):
            self._complete.append(save)


def _order(save: SaveOffer) -> tuple[int, int]:
    return (save.quorum_id, save.step)
