"""A whole job under a nemesis, all from one seed.

`python tests/lighthouse/simulated_job.py SEED` plays one again.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sim_attempt import Attempt
from sim_launcher import Launcher
from sim_saves import SimSaves
from sim_server import REAL_DECIDE, SimServer
from sim_world import World

from lighthouse import quorum_book
from lighthouse.persistence import SLOW_FOR_S
from lighthouse.quorum import Rules

FAULTS_S = 12.0
# After the last fault: the longest silence, the longest wait for a straggler, and some restarts.
CALM_S = 20.0
JOIN_TIMEOUT_S = 5.0


class SimulatedJob:
    """`live` lets faults happen for a while, stops them, and expects everybody to commit again."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        count = 2 + seed % 4
        rules = Rules(
            min_replicas=1 + seed // 4 % 2,
            expected_groups=(0, count)[seed // 8 % 2],
            join_timeout_s=JOIN_TIMEOUT_S,
        )
        self.faults: Counter[str] = Counter()
        self.server = SimServer(self.world, rules, with_disk=seed % 5 != 0)
        attempts: dict[int, Attempt] = {}
        self.saves = SimSaves(self.world, alone=seed % 3 == 0)
        self.launchers = [
            Launcher(self.world, self.server, self.saves, number, attempts) for number in range(count)
        ]
        self.server.restores.launchers = self.launchers
        for launcher in self.launchers:
            launcher.siblings = self.launchers
            self.world.after(self.world.random.uniform(0.0, 1.0), launcher.start)

    def live(self) -> "SimulatedJob":
        """One whole life. A failure names the seed."""
        with self._judged():
            self.world.after(1.0, self._make_trouble)
            self.world.run(FAULTS_S)
            self._make_peace()
            self.saves.prunings_left = 1
            step = self.server.judge.highest_step
            self.world.run(FAULTS_S + CALM_S, stop=lambda: self._all_beyond(step + 2))
            assert self._all_beyond(step + 2), self._complaint()
        return self

    def live_in_peace(self, *, slow_group: int | None = None) -> set[object]:
        """A while without a fault; who was named as slow. `slow_group` needs twice the time."""
        self.world.late = 0.0
        if slow_group is not None:
            self.launchers[slow_group].slowness = 2.0
        with self._judged():
            self.world.run(FAULTS_S + 2 * SLOW_FOR_S)
        return self.server.named_slow

    @contextmanager
    def _judged(self) -> Iterator[None]:
        quorum_book.decide = self.server.judge.decided
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed} at {self.world.now_s:.1f} s: {error}") from error
        finally:
            quorum_book.decide = REAL_DECIDE

    def _all_beyond(self, step: int) -> bool:
        groups = [launcher.group for launcher in self.launchers]
        return all(group is not None and group.alive and group.step > step for group in groups)

    def _complaint(self) -> str:
        waiting = self.server.machine.waiting(self.server.now_s())
        groups = [
            f"{launcher.number}: step {g.step}, call {g.call}, attempt "
            f"{g.attempt.quorum.quorum_id if g.attempt else None}, link {g.link is not None}"
            for launcher in self.launchers
            if (g := launcher.group) is not None
        ]
        return f"somebody does not commit any more: {waiting}; {groups}"

    # The nemesis.

    def _make_trouble(self) -> None:
        if self.world.now_s >= FAULTS_S:
            return
        random = self.world.random
        faults = (self._kill, self._kill, self._kill_rank, self._vanish, self._freeze, self._freeze_rank)
        faults += (self._part, self._part, self._abandon, self._abandon, self._drain, self._evict)
        faults += (self._hang, self._replace_frozen, self._kill_all)
        faults += (self._crash_server, self._pause_server, self._fill_disk, self._cut_streams)
        fault = random.choice(faults)
        self.faults[fault.__name__] += 1
        fault()
        self.world.after(random.choice((0.1, 0.7, 1.5)), self._make_trouble)

    def _make_peace(self) -> None:
        self.server.disk_full = False

    def _victim(self) -> Launcher:
        return self.world.random.choice(self.launchers)

    def _kill(self) -> None:
        group = self._victim().group
        if group is not None:
            group.die()

    def _kill_all(self) -> None:
        """A disaster: some hosts close their sockets, some do not, and the server may go with them."""
        for launcher in self.launchers:
            if launcher.group is not None:
                launcher.group.die(seen_after_s=self.world.random.choice((0.02, 0.02, 3.0)))
        if self.world.chance(0.2):
            self.server.lose_disk()
        elif self.world.chance(0.3):
            self._crash_server()

    def _kill_rank(self) -> None:
        """One rank dies; its launcher ends the others a little later."""
        group = self._victim().group
        if group is not None and group.link is not None:
            streams = group.link.streams
            rank = self.world.random.choice((0, 1))
            if rank in streams:
                number = streams.pop(rank)
                self.server.told.pop(number, None)
                self.server.receive(
                    lambda: self.server.carry_out(
                        self.server.machine.detach(group.id, number, self.server.now_s())
                    )
                )
            self.world.after(0.3, group.die)

    def _vanish(self) -> None:
        """A host is gone without closing a socket."""
        group = self._victim().group
        if group is not None:
            group.die(seen_after_s=3.0)

    def _freeze(self) -> None:
        group = self._victim().group
        if group is not None:
            group.freeze(self.world.random.choice((0.5, 1.5, 4.0)))

    def _freeze_rank(self) -> None:
        group = self._victim().group
        if group is not None:
            group.freeze_one_rank()

    def _hang(self) -> None:
        """Some groups stop training, although they beat and pulse."""
        for launcher in self.launchers:
            if launcher.group is not None and self.world.chance(0.6):
                launcher.group.hang(7.0)

    def _replace_frozen(self) -> None:
        """A group is frozen for long, taken for dead, and started anew; then it wakes up.

        The server that saw that may have gone before.
        """
        launcher, frozen_s = self._victim(), self.world.random.choice((1.0, 6.0))
        if launcher.group is not None and launcher.group.alive:
            launcher.group.freeze(frozen_s)
            self.world.after(0.6, lambda: launcher.start(although_alive=True))
            if self.world.chance(0.3):
                self.world.after(frozen_s - 0.2, lambda: self.server.crash(0.3))

    def _part(self) -> None:
        """A partition, in one direction or both."""
        group = self._victim().group
        if group is not None and group.link is not None:
            up, down = self.world.random.choice(((True, True), (True, False), (False, True)))
            group.link.cut(up=up, down=down, duration_s=self.world.random.choice((0.5, 1.5, 5.0)))

    def _cut_streams(self) -> None:
        """The network resets a connection that both ends could still use."""
        group = self._victim().group
        if group is not None and group.link is not None:
            group.link.break_both()

    def _abandon(self) -> None:
        group = self._victim().group
        if group is not None and group.alive:
            group.abandon()

    def _drain(self) -> None:
        number = self._victim().number
        self.server.receive(lambda: self.server.carry_out(self.server.machine.drain(number)[1]))

    def _evict(self) -> None:
        number = self._victim().number
        self.server.receive(
            lambda: self.server.carry_out(self.server.machine.evict(number, "chance", self.server.now_s())[1])
        )

    def _crash_server(self) -> None:
        self.server.crash(self.world.random.choice((0.1, 1.0, 3.0)))

    def _pause_server(self) -> None:
        self.server.pause(self.world.random.choice((0.3, 1.0, 3.0)))

    def _fill_disk(self) -> None:
        self.server.disk_full = True
        self.world.after(1.5, self._make_peace)


if __name__ == "__main__":
    job = SimulatedJob(int(sys.argv[1])).live()
    print(f"seed {job.seed}: {len(job.server.judge.quorums)} quorums, faults {dict(job.faults)}")
