"""Keeps the processes of a local cluster as they should be, and ends them."""

import math
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from replica.ledger import EventKind, EventLog, events_path, ledger_path
from train.cluster import processes
from train.cluster.children import Child
from train.cluster.commands import ClusterSettings, LighthouseKind, environment, group_command
from train.cluster.errors import ClusterError, refusal
from train.cluster.follow import GroupProgress, LineFollower
from train.cluster.lighthouse_child import LighthouseChild
from train.cluster.snapshot import Snapshot
from train.cluster.supervised_group import Run, SupervisedGroup
from train.cluster.supervision import Decision, Verdict, after_ending

# How long workers may outlive their launcher before they are killed: they end by themselves.
LEFTOVERS_S = 10.0
_TERMINATE_LIGHTHOUSE_S = 1.0
_KILL_S = 1.0


class Supervisor:
    """Starts, watches and restarts the Lighthouse and the groups.

    Nothing happens by itself: one thread calls tick() again and again. All methods may be called
    from any thread; one lock makes each of them whole.
    """

    def __init__(
        self, settings: ClusterSettings, *, mark: str, events: EventLog, inherited: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._mark = mark
        self._events = events
        self._inherited = inherited
        self._lock = threading.RLock()
        self._follower = LineFollower(events_path(settings.out))
        self._lighthouse = LighthouseChild(settings, mark=mark, events=events, inherited=inherited)
        self._groups = [self._make_group(number) for number in range(settings.groups)]
        self._kills = 0
        self._error: ClusterError | None = None

    def _make_group(self, number: int) -> SupervisedGroup:
        out, name = self._settings.out, f"group-{number}"
        child = Child(name=name, mark=self._mark, log=out / "logs" / f"{name}.log")
        progress = GroupProgress(ledger_path(out, number))
        return SupervisedGroup(number, child=child, progress=progress, events=self._events)

    @property
    def error(self) -> ClusterError | None:
        """Why the cluster was ended, None while all is well."""
        return self._error

    @contextmanager
    def lighthouse(self) -> Iterator[LighthouseChild]:
        """The Lighthouse, for as long as the caller holds the lock."""
        with self._lock:
            yield self._lighthouse

    @contextmanager
    def group(self, number: int) -> Iterator[SupervisedGroup]:
        """A group, for as long as the caller holds the lock. Raises ClusterError if there is none."""
        with self._lock:
            if not 0 <= number < len(self._groups):
                raise ClusterError(f"there is no group {number}: groups are 0 to {len(self._groups) - 1}.")
            yield self._groups[number]

    @contextmanager
    def harm(self, number: int) -> Iterator[tuple[SupervisedGroup, int]]:
        """A group that is about to be killed, and the job's step; counts as a kill unless it raises."""
        with self.group(number) as group:
            yield group, self.step()
            self._kills += 1

    def kill_lighthouse(self, down_s: float | None) -> None:
        """Kills the Lighthouse and counts that as a kill. Raises ClusterError if it does not run."""
        with self._lock:
            self._lighthouse.kill(self.step(), down_s)
            self._kills += 1

    def kill_everything(self, lighthouse: bool, down_s: float | None) -> list[int]:
        """Kills all groups that run, and the Lighthouse if told so, as one; returns the pids.

        All are stopped before the first is killed, so that none sees another go. down_s: seconds until
        all of it is started again, None for never. Raises ClusterError if no group runs.
        """
        with self._lock:
            step = self.step()
            running = [group for group in self._groups if group.child.running]
            if not running:
                raise ClusterError("no group runs now.")
            takes_lighthouse = lighthouse and self._lighthouse.child.running
            pids = [pid for group in running for pid in group.child.pause()]
            if takes_lighthouse:
                pids += self._lighthouse.child.pause()
                self._lighthouse.kill(step, down_s)
            for group in self._groups:
                if group in running:
                    group.kill(step)
                group.stay_down(math.inf if down_s is None else down_s)
            self._kills += len(running) + takes_lighthouse
            return pids

    def step(self) -> int:
        """Steps committed by the group that has committed most."""
        with self._lock:
            self._look()
            return max(group.progress.step for group in self._groups)

    def lighthouse_up(self) -> bool:
        """Whether the Lighthouse listens and answers."""
        with self._lock:
            return self._lighthouse.up

    def settled(self) -> bool:
        """Whether every group has finished or stays down."""
        with self._lock:
            return all(group.settled for group in self._groups)

    def finished(self) -> bool:
        """Whether the job is done: every group is settled, and one at least ended with exit code 0."""
        with self._lock:
            stopped = any(group.run is Run.STOPPED for group in self._groups)
            return self.settled() and self._any_finished() and not stopped

    def snapshot(self) -> Snapshot:
        """The cluster as it is now."""
        with self._lock:
            self._look()
            first = max(self._groups, key=lambda group: group.progress.step)
            paces = [group.progress.step_s for group in self._groups]
            known = [pace for pace in paces if pace is not None]
            return Snapshot(
                step=first.progress.step,
                steps=self._settings.facts.steps,
                loss=first.progress.loss,
                step_s=statistics.median(known) if known else None,
                kills=self._kills,
                lighthouse_up=self._lighthouse.up,
                groups=tuple(group.snapshot(time.time()) for group in self._groups),
            )

    def tails(self, *, all_groups: bool = False) -> str:
        """The last lines of the logs of the Lighthouse and of all groups, or those not finished."""
        with self._lock:
            children = [group.child for group in self._groups if all_groups or group.run is not Run.FINISHED]
            return "\n".join(_tail(child) for child in [self._lighthouse.child, *children])

    def launch_groups(self) -> None:
        """Starts every group for the first time. The Lighthouse must listen."""
        with self._lock:
            for group in self._groups:
                self._launch(group)

    def tick(self) -> None:
        """Takes in what has happened and does what is due. Call it some twenty times a second."""
        with self._lock:
            if self._error is not None:
                return
            try:
                self._look()
                self._lighthouse.tend()
                for group in self._groups:
                    self._tend(group)
            except ClusterError as error:
                self.fail(error)

    def fail(self, error: ClusterError) -> None:
        """Ends all processes at once; those who wait for the cluster are told the error."""
        with self._lock:
            self._error = error
            self.shutdown(grace_s=0.0)

    def shutdown(self, grace_s: float) -> list[int]:
        """Ends all processes, groups first: SIGTERM, and SIGKILL after grace_s seconds.

        Blocks for little more than grace_s; returns the pids that are left, none as a rule.
        """
        with self._lock:
            self._lighthouse.release()
            if grace_s > 0:
                _terminate([group.child for group in self._groups], grace_s)
            for group in self._groups:
                group.run = group.run if group.settled else Run.STOPPED
                group.child.kill()
            if grace_s > 0:
                _terminate([self._lighthouse.child], _TERMINATE_LIGHTHOUSE_S)
            self._lighthouse.child.kill()
            return processes.kill_until_none(self._mark, _KILL_S)

    def _look(self) -> None:
        for group in self._groups:
            group.progress.look()
        for event in self._follower.new_lines():
            if event.get("group") not in range(len(self._groups)):
                continue
            group = self._groups[event["group"]]
            if event.get("kind") == EventKind.GROUP_STARTED:
                group.mark_trainer_up(event["t"])
            elif event.get("kind") == EventKind.BACKSTOP_READ:
                group.progress.mark_restored(event["step"], event["t"])

    def _any_finished(self) -> bool:
        return any(group.run is Run.FINISHED for group in self._groups)

    def _job_over(self) -> bool:
        """Whether a group that starts now would train alone, from the first step.

        Our Lighthouse tells it that the job is finished; torchft's does not know that there is a job.
        """
        return self._settings.lighthouse_kind is LighthouseKind.TORCHFT and self._any_finished()

    def _launch(self, group: SupervisedGroup) -> None:
        address = self._lighthouse.address
        command = group_command(self._settings, group.number, address)
        group.launch(command, environment(self._settings, group.number, address, self._inherited))

    def _tend(self, group: SupervisedGroup) -> None:
        match group.run:
            case Run.RUNNING if not group.child.running:
                group.mark_leaving(time.monotonic() + LEFTOVERS_S)
            case Run.RUNNING | Run.WAITING if self._job_over() and group.starts_again:
                group.child.kill()
                group.run = Run.DOWN
            case Run.LEAVING:
                self._tend_leaving(group)
            case Run.WAITING if time.monotonic() >= group.due_s:
                self._launch(group)

    def _tend_leaving(self, group: SupervisedGroup) -> None:
        if group.child.pids():
            if time.monotonic() < group.due_s:
                return
            group.child.kill()
        group.progress.look()
        begun = any(each.progress.commits for each in self._groups)
        restart = self._settings.restart and group.down_s != math.inf
        ending = group.ending(restart=restart, job_over=self._job_over(), job_begun=begun)
        self._carry_out(group, after_ending(ending))

    def _carry_out(self, group: SupervisedGroup, decision: Decision) -> None:
        group.failures = decision.failures
        match decision.verdict:
            case Verdict.FINISHED:
                group.run = Run.FINISHED
            case Verdict.LEAVE:
                group.run = Run.DOWN
            case Verdict.RESTART:
                group.run = Run.WAITING
                down_s = self._settings.restart_delay_s if group.down_s is None else group.down_s
                group.due_s = time.monotonic() + down_s + decision.backoff_s
            case Verdict.REFUSED:
                said = group.child.last_sentence()
                raise refusal(f"group {group.number} cannot run: {said}")
            case Verdict.FAILING:
                raise ClusterError(
                    f"group {group.number} ended {decision.failures} times in a row without a commit: "
                    f"{group.child.last_sentence()}\n{_tail(group.child)}"
                )


def _terminate(children: list[Child], grace_s: float) -> None:
    """SIGTERM to all, and a wait until they and all their descendants are gone, at most grace_s."""
    pids = [pid for child in children for pid in child.pids()]
    for child in children:
        child.terminate()
    processes.wait_until_gone(pids, grace_s)


def _tail(child: Child) -> str:
    return f"--- the end of {child.log}\n{child.tail() or '(nothing was written)'}"
