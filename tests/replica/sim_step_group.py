"""Simulated replica groups: their lives, their deaths, and what the groups of one job share."""

from sim_step_judge import Judge
from sim_step_rank import SimRank
from sim_step_wire import SimLighthouse
from sim_step_world import Fault, World

DEATH_SEEN_S = (0.05, 3.0)
FREEZES_S = (1.0, 5.0, 9.0)


class SimGroup:
    """One incarnation of a replica group."""

    def __init__(self, number: int, incarnation: int, size: int, job: "SimJob") -> None:
        self.number = number
        self.incarnation = incarnation
        self.size = size
        self.job = job
        self.dead = False
        self.unlucky_quorum = -1
        self.ranks = [SimRank(self, rank) for rank in range(size)]
        self._circles: dict[int, dict[int, tuple[object, object]]] = {}
        self._asked = 0

    def __repr__(self) -> str:
        return f"group {self.number}:{self.incarnation}"

    @property
    def step(self) -> int:
        return self.ranks[0].step

    def start(self) -> None:
        for rank in self.ranks:
            self.job.world.wake(rank)

    def ask(self) -> None:
        """One more rank wants a quorum; the Lighthouse hears of it when all ranks do."""
        self._asked += 1
        if self._asked % self.size == 0 and not self.dead:
            world, lighthouse = self.job.world, self.job.lighthouse
            lighthouse.highest_ask = max(lighthouse.highest_ask, self.step)
            world.after(world.delay_s(), lambda: lighthouse.hear_ask(self))

    def circle(self, number: int) -> dict[int, tuple[object, object]]:
        """What each rank brings when the ranks of the group meet for the nth time."""
        return self._circles.setdefault(number, {})

    def die(self, rank: SimRank | None = None) -> None:
        """End all ranks now; or one, and the others a little later."""
        world = self.job.world
        for each in self.ranks if rank is None else [rank]:
            each.die()
        if rank is not None:
            world.after(world.random.random(), self.die)
        if not self.dead:
            self.dead = True
            world.after(world.random.choice(DEATH_SEEN_S), lambda: self.job.lighthouse.lose(self))
            self.job.restart_later(self)

    def freeze(self, rank: SimRank | None = None) -> None:
        """Stop all ranks, or one, for a while."""
        world = self.job.world
        until_s = world.now_s + world.random.choice(FREEZES_S)
        for each in self.ranks if rank is None else [rank]:
            each.frozen_until_s = until_s


class SimJob:
    """What the groups of one job share."""

    def __init__(self, world: World, *, groups: int, ranks: int, rounds: int, tells: bool) -> None:
        self.world = world
        self.rounds = rounds
        self.lighthouse = SimLighthouse(world, tells=tells)
        self.judge = Judge(rounds)
        self.groups = [SimGroup(number, number, ranks, self) for number in range(groups)]
        self._incarnations = groups
        for group in self.groups:
            world.after(world.random.uniform(0.0, 1.5), group.start)

    def may_kill(self, victim: SimGroup) -> bool:
        """Somebody who may go on must be left: a job that starts again from disk is another subject."""
        others = [group for group in self.groups if group is not victim and not group.dead]
        return not victim.dead and any(group.step >= self.lighthouse.highest_ask for group in others)

    def strike(self, fault: Fault, rank: SimRank) -> None:
        """Do this to a rank or its group, where it can be done from outside."""
        group = rank.group
        kills = fault in (Fault.KILL_GROUP, Fault.KILL_RANK)
        if kills and not self.may_kill(group):
            return
        if kills:
            group.die(rank if fault is Fault.KILL_RANK else None)
        elif fault in (Fault.FREEZE_GROUP, Fault.FREEZE_RANK):
            group.freeze(rank if fault is Fault.FREEZE_RANK else None)
        elif fault is Fault.END:
            self.lighthouse.end_attempt(self.lighthouse.last.id)
        else:
            return
        self.world.struck[fault, rank.point] += 1

    def restart_later(self, group: SimGroup) -> None:
        """A new incarnation takes the place of one that died."""
        self.world.after(self.world.random.uniform(1.0, 6.0), lambda: self._restart(group))

    def _restart(self, old: SimGroup) -> None:
        self.lighthouse.lose(old)
        new = SimGroup(old.number, self._incarnations, old.size, self)
        self._incarnations += 1
        self.groups[self.groups.index(old)] = new
        new.start()
