"""When a save is due, and which group writes it. Pure: steps and seconds go in."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """After every so many steps, and every so many seconds. 0: never for that reason."""

    every_steps: int
    every_s: float

    @property
    def by_time(self) -> bool:
        """Whether the clock matters: the ranks of a group must then ask one of them."""
        return self.every_s > 0

    def due(self, step: int, since_s: float) -> bool:
        """Whether the state after `step` steps is to be saved, `since_s` after the save before it began."""
        by_steps = self.every_steps > 0 and step % self.every_steps == 0
        return by_steps or (self.by_time and since_s >= self.every_s)


def writer_of(owners: Collection[int]) -> int:
    """The group that saves: the lowest number among those that computed the step.

    All members of a quorum know them, so that all agree without a word; when the writer dies,
    the next quorum has another one.
    """
    return min(owners)
