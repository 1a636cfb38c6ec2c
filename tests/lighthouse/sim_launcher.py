"""The launcher of a simulated replica group, which restarts it."""

from sim_attempt import Attempt
from sim_group import SimGroup
from sim_saves import SimSaves
from sim_server import SimServer
from sim_world import World


class Launcher:
    """Starts the group anew whenever it has ended."""

    def __init__(
        self, world: World, server: SimServer, saves: SimSaves, number: int, attempts: dict[int, Attempt]
    ) -> None:
        self.world = world
        self.server = server
        self.saves = saves
        self.number = number
        self.attempts = attempts
        self.incarnation = 0
        self.slowness = 1.0
        self.group: SimGroup | None = None
        self.siblings: list[Launcher] = []

    def start(self, *, although_alive: bool = False) -> None:
        if self.group is not None and self.group.alive and not although_alive:
            return
        self.incarnation += 1
        self.group = SimGroup(self)
        self.group.connect()

    def others(self) -> list[SimGroup]:
        """The present incarnations of the other groups."""
        return [other.group for other in self.siblings if other is not self and other.group is not None]

    def restart_later(self) -> None:
        self.world.after(self.world.random.uniform(0.3, 2.0), self.start)
