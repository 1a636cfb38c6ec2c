"""One replica group of a local cluster: its processes, its progress, and what befell it."""

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from replica.ledger import EventKind, EventLog, KillTarget
from train.cluster import processes
from train.cluster.children import Child
from train.cluster.errors import ClusterError
from train.cluster.follow import GroupProgress
from train.cluster.snapshot import GroupSnapshot, GroupState
from train.cluster.supervision import Ending


class Run(Enum):
    """Where the supervision of a group stands."""

    RUNNING = auto()  # its launcher runs
    LEAVING = auto()  # the launcher has ended, workers of it may still run
    WAITING = auto()  # to be started when it is due
    FINISHED = auto()  # ended with exit code 0
    DOWN = auto()  # stays down
    STOPPED = auto()  # ended with the cluster, before it was finished


class SupervisedGroup:
    """Starts, kills and pauses a group, and keeps the record of it; decides nothing.

    One caller at a time. run: where it stands, moved on by the supervisor. due_s: monotonic clock,
    when to start it again, or while it is leaving, when to stop waiting for its workers.
    failures: incarnations in a row that ended by themselves without a commit. down_s: after the end of
    the present life, seconds until the next; None: as the cluster says, infinite: it stays down.
    """

    def __init__(self, number: int, *, child: Child, progress: GroupProgress, events: EventLog) -> None:
        self.number = number
        self.child = child
        self.progress = progress
        self.run = Run.WAITING
        self.due_s = math.inf
        self.failures = 0
        self.down_s: float | None = None
        self._events = events
        self._killed = False
        self._paused = False
        self._trainer_up_t = 0.0
        self._commits_before = 0
        self._ended_t: float | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.run in (Run.FINISHED, Run.DOWN, Run.STOPPED)

    @property
    def committed(self) -> bool:
        """Whether the present incarnation has committed a step."""
        return self.progress.commits > self._commits_before

    @property
    def starts_again(self) -> bool:
        """Whether it was lost and has not committed anything since."""
        return self.run is Run.WAITING or (self.child.launches > 1 and not self.committed)

    def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts a new incarnation."""
        self.progress.look()
        self._commits_before = self.progress.commits
        self._killed = self._paused = False
        self._ended_t = self.down_s = None
        self._events.write(EventKind.GROUP_LAUNCHED, group=self.number, launch=self.child.launches + 1)
        self.child.start(command, environment)
        self.run = Run.RUNNING

    def kill(self, step: int) -> list[int]:
        """Ends all its processes with SIGKILL and returns their pids. step: for the record."""
        self._require_running()
        return self.child.kill(self._killing(KillTarget.GROUP, None, step))

    def kill_rank(self, rank: int, step: int) -> list[int]:
        """Ends the worker of one rank; returns its pid."""
        worker = self._worker(rank)
        return self._kill_one(worker, self._killing(KillTarget.RANK, rank, step))

    def kill_launcher(self, step: int) -> list[int]:
        """Ends the launcher alone; returns its pid. The workers are expected to end by themselves."""
        self._require_running()
        launcher = self.child.pid
        assert launcher is not None
        pids = self._kill_one(launcher, self._killing(KillTarget.LAUNCHER, None, step))
        self.child.reap()
        return pids

    def evict(self, order: Callable[[], None], step: int) -> None:
        """Has it counted out by `order`, after which its processes end themselves; on record if it works."""
        self._require_running()
        order()
        self._killed = True
        self._events.write(EventKind.GROUP_EVICTED, group=self.number, step=step)

    def stay_down(self, down_s: float) -> None:
        """Puts the next life off, if there is to be one, by so many seconds; infinite: for good."""
        self.down_s = down_s
        if self.run is Run.WAITING:
            self.due_s = time.monotonic() + down_s
            self.run = Run.DOWN if down_s == math.inf else Run.WAITING

    def pause(self, rank: int | None) -> None:
        """Stops all its processes, or the worker of one rank, with SIGSTOP."""
        self._require_running()
        worker = None if rank is None else self._worker(rank)
        self._events.write(EventKind.GROUP_PAUSED, group=self.number, rank=rank)
        if worker is None:
            self.child.pause()
        else:
            processes.send(worker, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Lets whatever of it is stopped go on."""
        self._require_running()
        self._events.write(EventKind.GROUP_RESUMED, group=self.number)
        self.child.resume()
        self._paused = False

    def mark_leaving(self, leftovers_until_s: float) -> None:
        """Takes note that the launcher has ended."""
        self._events.write(EventKind.GROUP_EXITED, group=self.number, code=self.child.exit_code)
        self.run = Run.LEAVING
        self.due_s = leftovers_until_s
        self._ended_t = time.time()

    def mark_trainer_up(self, wall_t: float) -> None:
        """Takes note that a trainer of it has said that it started."""
        self._trainer_up_t = max(self._trainer_up_t, wall_t)

    def ending(self, *, restart: bool, job_over: bool, job_begun: bool) -> Ending:
        """How the incarnation that has just ended did end."""
        exit_code = self.child.exit_code
        assert exit_code is not None
        return Ending(
            exit_code=exit_code,
            killed=self._killed,
            committed=self.committed,
            failures=self.failures,
            restart=restart,
            job_over=job_over,
            job_begun=job_begun,
        )

    def snapshot(self, wall_t: float) -> GroupSnapshot:
        """What there is to show of it now."""
        heard_t = self._ended_t or self.progress.heard_t or self.child.launched_t
        return GroupSnapshot(
            group=self.number,
            state=self._state(),
            step=self.progress.step,
            last_seen_s=max(0.0, wall_t - heard_t),
        )

    def _state(self) -> GroupState:
        if self.run is Run.FINISHED:
            return GroupState.FINISHED
        if self.run is not Run.RUNNING or self._killed:
            return GroupState.DEAD
        if self._paused:
            return GroupState.PAUSED
        if self.committed:
            return GroupState.TRAINING
        if self.child.launches == 1:
            return GroupState.STARTING
        return GroupState.HEALING if self._trainer_up_t >= self.child.launched_t else GroupState.RESTARTING

    def _killing(self, target: KillTarget, rank: int | None, step: int) -> Callable[[], None]:
        def record() -> None:
            self._killed = True
            self._events.write(EventKind.KILL, group=self.number, rank=rank, target=target, step=step)

        return record

    def _kill_one(self, pid: int, just_before: Callable[[], None]) -> list[int]:
        just_before()
        processes.send(pid, signal.SIGKILL)
        processes.wait_until_gone([pid], timeout_s=5.0)
        return [pid]

    def _worker(self, rank: int) -> int:
        self._require_running()
        worker = processes.worker_of_rank(self.child.pids(), rank)
        if worker is None:
            raise ClusterError(f"group {self.number} has no process of rank {rank} now.")
        return worker

    def _require_running(self) -> None:
        if not self.child.running:
            raise ClusterError(f"group {self.number} does not run now.")
