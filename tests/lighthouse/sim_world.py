"""Virtual time and an unreliable network for the simulation. Everything random comes from one seed."""

import heapq
import itertools
import random
from collections.abc import Callable

Act = Callable[[], None]

# After so long without an answer either end of a connection gives it up.
KEEPALIVE_S = 3.0


class World:
    """A queue of things that will happen. `late` is the share of messages that take long."""

    def __init__(self, seed: int) -> None:
        self.late = 0.03
        self.random = random.Random(seed)
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Act]] = []
        self._order = itertools.count()

    def after(self, delay_s: float, act: Act) -> None:
        """Let this happen later."""
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._order), act))

    def run(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, to `until_s` or until `stop`."""
        while self._queue and self._queue[0][0] <= until_s and not stop():
            self.now_s, _, act = heapq.heappop(self._queue)
            act()
        if not stop():
            self.now_s = until_s

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def delay_s(self) -> float:
        """How long a message takes: mostly next to nothing, now and then long."""
        return self.random.uniform(0.2, 0.6) if self.chance(self.late) else self.random.uniform(0.001, 0.01)


class Link:
    """A connection between a process and the server: in order, and it breaks for both ends.

    `up_cut` and `down_cut` hold messages back in one direction, as a partition does.
    """

    def __init__(self, world: World, at_server_break: Act, at_client_break: Act) -> None:
        self._world = world
        self._at_break = {"server": at_server_break, "client": at_client_break}
        self.up_cut = False
        self.down_cut = False
        self.broken: set[str] = set()
        self._held: dict[bool, list[Act]] = {True: [], False: []}
        self._last_s = {True: 0.0, False: 0.0}

    def send(self, act: Act, *, up: bool) -> None:
        """Deliver this at the other end, in order."""
        if ("client" if up else "server") in self.broken:
            return
        if self.up_cut if up else self.down_cut:
            self._held[up].append(act)
            return
        arrival_s = max(self._last_s[up], self._world.now_s + self._world.delay_s())
        self._last_s[up] = arrival_s
        receiver = "server" if up else "client"
        self._world.after(arrival_s - self._world.now_s, lambda: None if receiver in self.broken else act())

    def cut(self, *, up: bool, down: bool, duration_s: float) -> None:
        """Partition for a while; if it lasts, both ends give the connection up."""
        self.up_cut, self.down_cut = self.up_cut or up, self.down_cut or down
        if duration_s > KEEPALIVE_S:
            self._world.after(KEEPALIVE_S, self.break_both)
        self._world.after(duration_s, self._mend)

    def break_both(self) -> None:
        """The connection is lost, and both ends notice."""
        self.break_end("server")
        self.break_end("client")

    def break_end(self, end: str) -> None:
        """One end notices that the connection is lost."""
        if end not in self.broken:
            self.broken.add(end)
            self._at_break[end]()

    def _mend(self) -> None:
        self.up_cut = self.down_cut = False
        for up in (True, False):
            held, self._held[up] = self._held[up], []
            for act in held:
                self.send(act, up=up)
