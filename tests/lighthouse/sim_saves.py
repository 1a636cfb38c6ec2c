"""The store that all groups of the simulation write their saves to. Only complete saves are ever seen."""

from typing import TYPE_CHECKING

from sim_attempt import Attempt
from sim_world import World

from lighthouse.lineage import digest_of
from lighthouse.model import SaveOffer, SavesFound

if TYPE_CHECKING:
    from sim_group import SimGroup

SAVE_EVERY = 3
# The share of groups that find the save pruned which they are to load, where there is another.
PRUNED = 0.2
# The share of groups whose view of the store is empty for a moment.
BLIND = 0.1


class SimSaves:
    """Newest last, by quorum id and step. `alone`: the job has trained without a Lighthouse before.

    `prunings_left` bounds how often a save is gone when it is to be loaded.
    """

    def __init__(self, world: World, *, alone: bool) -> None:
        self.prunings_left = 1000
        self._world = world
        self._torn_quorum_id = 17 if alone else 0
        self._complete = [SaveOffer(name="step-3-quorum-0", step=3, quorum_id=0)] if alone else []

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

    def look(self, *, may_be_blind: bool) -> SavesFound:
        """The newest one; a listing may trail by one, or be empty where there is another's to wait for.

        Of a torn one, only the quorum id can be seen.
        """
        if may_be_blind and self._world.chance(BLIND):
            return SavesFound()
        trails = len(self._complete) > 1 and self._world.chance(0.3)
        seen = self._complete[: -1 if trails else None]
        highest = max((save.quorum_id for save in seen), default=0)
        offer = seen[-1] if seen else None
        return SavesFound(offer=offer, highest_quorum_id=max(highest, self._torn_quorum_id))

    def may_load(self, save: SaveOffer) -> bool:
        """Whether it is still there: meanwhile it may have been pruned, but never the last one."""
        is_one_of_many = save in self._complete and len(self._complete) > 1
        if self.prunings_left and is_one_of_many and self._world.chance(PRUNED):
            self.prunings_left -= 1
            self._complete.remove(save)
        return save in self._complete

    def _publish(self, save: SaveOffer) -> None:
        if not self._complete or _order(save) > _order(self._complete[-1]):
            self._complete.append(save)


def _order(save: SaveOffer) -> tuple[int, int]:
    return (save.quorum_id, save.step)
