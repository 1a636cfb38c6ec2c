"""A whole job that steps under a nemesis, all from one seed.

`python tests/replica/sim_step.py SEED` plays one again.
"""

import sys

from sim_step_group import SimJob
from sim_step_world import World

FAULTS_S = 25.0
CALM_S = 200.0
# After the last fault: what it spoilt, and what that spoils in turn. Three were seen at most.
MOST_IN_VAIN = 5


class SimulatedSteps:
    """`live` lets faults happen for a while, stops them, and expects everybody to commit again."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        random = self.world.random
        self.job = SimJob(
            self.world,
            groups=random.choice((2, 3, 3, 4, 5)),
            ranks=random.choice((1, 2, 2, 3)),
            rounds=random.choice((2, 3, 5)),
            tells=random.random() < 0.7,
        )
        self.vain = 0
        self._goal = 0

    def live(self) -> "SimulatedSteps":
        """One whole life. A failure names the seed."""
        try:
            self.world.after(2.0, self._make_trouble)
            self.world.run(FAULTS_S)
            self._recover()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed} at {self.world.now_s:.1f} s: {error}") from error
        return self

    def _recover(self) -> None:
        """No more faults: everybody must soon commit, in few attempts."""
        self.world.make_peace()
        self._goal = self.job.judge.highest_step + 2
        before = {rank: rank.vain for group in self.job.groups for rank in group.ranks}
        self._look()
        self.world.run(FAULTS_S + CALM_S)
        assert self._arrived(), f"somebody does not commit any more: {self._complaint()}"
        ranks = [rank for group in self.job.groups for rank in group.ranks]
        self.vain = max(rank.vain - before.get(rank, 0) for rank in ranks)
        assert self.vain <= MOST_IN_VAIN, f"{self.vain} attempts in vain although nothing went wrong"

    def _arrived(self) -> bool:
        return all(not group.dead and group.step >= self._goal for group in self.job.groups)

    def _look(self) -> None:
        self.world.stopped = self._arrived()
        self.world.after(0.5, self._look)

    def _complaint(self) -> str:
        return ", ".join(
            f"{rank} {rank.point.value} after {rank.vain} attempts in vain"
            for group in self.job.groups
            for rank in group.ranks
        )

    def _make_trouble(self) -> None:
        """Faults that come whatever the victim is doing: waiting, mostly."""
        world = self.world
        if world.faults:
            rank = world.random.choice(world.random.choice(self.job.groups).ranks)
            self.job.strike(world.random.choice(world.faults), rank)
            world.after(world.random.uniform(0.2, 4.0), self._make_trouble)


if __name__ == "__main__":
    life = SimulatedSteps(int(sys.argv[1])).live()
    print(f"seed {life.seed}: {dict(life.job.judge.counted)}, faults {dict(life.world.struck)}")
