"""A whole cluster on this machine: the library behind `python -m train.local`.

with LocalCluster(out=Path("out/try"), groups=2, ranks=1, steps=30, script=Path("my.py")) as cluster:
    cluster.wait_step(10)
    cluster.kill(1)
    report = cluster.wait()
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lighthouse.access import Access
from lighthouse.client import LighthouseError, evict
from replica.ledger import events_path
from replica.shadowing import LIBRARY, TRAINER, refuse_shadows
from train.cluster.commands import (
    ClusterSettings,
    Launcher,
    LighthouseKind,
    launcher_of,
    lighthouse_kind_of,
)
from train.cluster.errors import ClusterError, refusal
from train.cluster.follow import LineFollower
from train.cluster.job_facts import read_job
from train.cluster.run_folder import claim, fresh_folder, take_up
from train.cluster.running import Running
from train.cluster.snapshot import Snapshot
from train.cluster.supervisor import Supervisor
from train.report import write_report

_TICK_S = 0.05
_LIGHTHOUSE_START_S = 60.0
_STOP_GRACE_S = 3.0


class LocalCluster:
    """A Lighthouse and replica groups as child processes of this one; a context manager.

    Groups that die are started again. Everything ends with the context, and also if this process is
    killed with SIGKILL. Methods may be called from any thread; all that are about a group raise
    ClusterError if there is no such group, and those that harm one if it does not run just now.

    out: folder for ledgers, events, logs and the report, made if need be; it must not hold another
    run. None: out/JOB-DATE-TIME below the current folder. groups: replica groups. ranks: processes
    in each. steps: optimizer updates; None: as the configuration or the script says. script: trained
    by every rank, with args, instead of the reference trainer; it finds its group in the
    environment. config, mode, overrides: for the reference trainer. job: name of the job.
    launcher: "headway", "torchrun", or the words of a command that takes torchrun's arguments.
    max_restarts: restarts inside a group by its launcher. restart, restart_delay_s: whether and how
    soon a lost group is started again. save_every: steps between two saves, 0: none; backstop: where
    they go, saves/ in out by default; None for both: as the configuration says. continues: the run in
    out goes on, its cluster having ended: ledgers, events, saves and the Lighthouse's state are taken
    up, by another number of groups or ranks if you like. addresses: one per group, under which its
    peers reach it. token_file: with the job's secret, for all groups and the Lighthouse. tls: the files
    "cert", "key" and "ca" that all of them use; the certificate must be made out to 127.0.0.1. env: added
    to the environment of every rank.

    Raises UserError for bad values.
    """

    def __init__(
        self,
        *,
        out: Path | None = None,
        groups: int = 3,
        ranks: int = 2,
        steps: int | None = None,
        seed: int | None = None,
        job: str | None = None,
        config: Path | None = None,
        script: Path | None = None,
        args: Sequence[str] = (),
        mode: str | None = None,
        overrides: Mapping[str, str] | None = None,
        lighthouse_kind: str = LighthouseKind.HEADWAY,
        launcher: str | Sequence[str] = Launcher.HEADWAY,
        max_restarts: int = 0,
        restart: bool = True,
        restart_delay_s: float = 1.0,
        save_every: int | None = None,
        backstop: str | Path | None = None,
        continues: bool = False,
        addresses: Sequence[str] = (),
        token_file: Path | None = None,
        tls: Mapping[str, Path] | None = None,
        env: Mapping[str, str] | None = None,
        join_timeout_s: float = 60.0,
        heartbeat_timeout_s: float = 5.0,
    ) -> None:
        refuse_shadows(TRAINER if script is None else LIBRARY, Path.cwd(), {**os.environ, **(env or {})})
        facts = read_job(
            script, config, ranks=ranks, steps=steps, seed=seed, job=job, mode=mode, overrides=overrides or {}
        )
        self.settings = ClusterSettings(
            out=fresh_folder(facts.job) if out is None else Path(out).absolute(),
            groups=groups,
            ranks=ranks,
            facts=facts,
            config=config,
            script=script,
            args=tuple(args),
            overrides=dict(overrides or {}),
            lighthouse_kind=lighthouse_kind_of(lighthouse_kind),
            launcher=launcher_of(launcher),
            max_restarts=max_restarts,
            restart=restart,
            restart_delay_s=restart_delay_s,
            save_every=save_every,
            backstop=None if backstop is None else str(backstop),
            continues=continues,
            addresses=tuple(addresses),
            token_file=None if token_file is None else Path(token_file).absolute(),
            tls=None if tls is None else {what: Path(path).absolute() for what, path in tls.items()},
            env=dict(env or {}),
            join_timeout_s=join_timeout_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
        )
        self._running: Running | None = None
        self._interrupted = False
        self._closed = False

    @property
    def out(self) -> Path:
        """The folder of the run."""
        return self.settings.out

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events of the run so far, in the order in which they were written."""
        return LineFollower(events_path(self.out)).new_lines()

    def start(self) -> Self:
        """Starts the Lighthouse, and when it listens, every group; returns then.

        Blocks for a second or two, 60 s at most. Raises UserError if the folder holds another run or
        cannot be written, ClusterError if the Lighthouse does not come up; nothing is left then.
        """
        if self._running is not None:
            raise ClusterError("the cluster has been started already: make a new one.")
        if self.settings.continues:
            take_up(self.out, self.settings.facts.job)
        else:
            claim(self.out)
        self._running = Running(self.settings)
        try:
            self._start_all(self._running.supervisor)
        except BaseException:
            self.stop(grace_s=0.0)
            raise
        return self

    def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Ends everything, with SIGTERM first and SIGKILL after grace_s seconds; 0: at once.

        Blocks until all is gone, about two seconds longer than grace_s at most. Does nothing if
        nothing runs. Raises ClusterError, with pids, if a process is left all the same.
        """
        if self._running is None or self._closed:
            return
        self._closed = True
        left = self._running.close(grace_s)
        if left:
            raise ClusterError(f"these processes could not be ended: {left}.")

    def interrupt(self) -> None:
        """Makes every method that waits raise ClusterError soon. May be called by a signal handler."""
        self._interrupted = True

    def __enter__(self) -> Self:
        return self if self._running is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_step(self, step: int, group: int | None = None, timeout_s: float = 120.0) -> None:
        """Blocks until `step` steps are committed: by the group, or if it is None, by any.

        Raises ClusterError, with the ends of the logs, when timeout_s is over or the job has ended
        before.
        """
        who = "any group" if group is None else f"group {group}"
        what = f"{who} to commit {step} steps"
        self._wait_for(lambda: self._reached(step, group, what), timeout_s, what)

    def wait(self, timeout_s: float = 600.0) -> dict[str, Any]:
        """Blocks until all groups have finished, then ends the Lighthouse; returns the report.

        Raises ClusterError, with the ends of the logs, when timeout_s is over, a group cannot go on, or
        all have ended without a single step.
        """
        supervisor = self._supervisor
        self._wait_for(supervisor.finished, timeout_s, "all groups to finish")
        self.stop()
        if not supervisor.step():
            raise refusal(
                "every group ended with exit code 0 and none has committed a step: let the script open a "
                f"replica.ReplicaGroup and commit its attempts.\n{supervisor.tails(all_groups=True)}"
            )
        return self.report()

    def report(self) -> dict[str, Any]:
        """Judges the ledgers and events written so far, and writes report.json into the folder."""
        return write_report(self.out)

    def step(self, group: int | None = None) -> int:
        """Steps committed so far: by the group, or if it is None, by the one that has most."""
        if group is None:
            return self._supervisor.step()
        with self._supervisor.group(group) as found:
            found.progress.look()
            return found.progress.step

    def alive(self, group: int) -> bool:
        """Whether the group's launcher runs."""
        with self._supervisor.group(group) as found:
            return found.child.running

    def pids(self, group: int) -> list[int]:
        """Pids of the group's launcher, its workers and all that they started, as far as they run."""
        with self._supervisor.group(group) as found:
            return found.child.pids()

    def snapshot(self) -> Snapshot:
        """What every group is doing now."""
        return self._supervisor.snapshot()

    @property
    def finished(self) -> bool:
        """Whether the job is done: no group is to come back, and one at least ended with code 0."""
        return self._supervisor.finished()

    @property
    def lighthouse_address(self) -> str:
        """HOST:PORT of the Lighthouse."""
        with self._supervisor.lighthouse() as lighthouse:
            return lighthouse.address

    @property
    def status_url(self) -> str:
        """Where the Lighthouse's status page is."""
        with self._supervisor.lighthouse() as lighthouse:
            return lighthouse.status_url or ""

    def log_tails(self) -> str:
        """The last lines of the logs of the Lighthouse and of every group that has not finished."""
        return self._supervisor.tails()

    def check(self) -> None:
        """Raises ClusterError if the cluster has failed, was interrupted or stopped."""
        supervisor = self._supervisor
        if supervisor.error is not None:
            raise supervisor.error
        if self._interrupted:
            raise ClusterError("the cluster was interrupted.")
        if self._closed:
            raise ClusterError("the cluster has been stopped.")
        if supervisor.settled() and not supervisor.finished():
            raise ClusterError(f"every group is down and none has finished.\n{supervisor.tails()}")

    def kill(self, group: int, rank: int | None = None, down_s: float | None = None) -> list[int]:
        """Kills with SIGKILL the whole group, or the worker of one rank; returns the pids.

        The whole group is its launcher, its workers and all that descends from them; they are
        stopped first, so that none escapes. down_s: seconds until it is started again; None: the
        cluster's restart_delay_s. Blocks until they are gone, some 0.1 s.
        """
        with self._supervisor.harm(group) as (found, step):
            pids = found.kill(step) if rank is None else found.kill_rank(rank, step)
            found.down_s = down_s
            return pids

    def kill_launcher(self, group: int) -> list[int]:
        """Kills with SIGKILL the group's launcher alone; its workers are to end by themselves.

        What is left of them after 10 s is killed before the group is started again.
        """
        with self._supervisor.harm(group) as (found, step):
            return found.kill_launcher(step)

    def kill_everything(self, lighthouse: bool = True, down_s: float | None = None) -> list[int]:
        """Kills with SIGKILL all groups whole, and the Lighthouse with them, as a power cut would.

        All are stopped before the first is killed. lighthouse False: it lives on. down_s: seconds
        until everything is started again; None: it stays down. stop() this cluster then, and let
        another one with continues=True go on in the same folder. Returns the pids; blocks until they
        are gone, some 0.3 s.
        """
        return self._supervisor.kill_everything(lighthouse, down_s)

    def evict(self, group: int) -> None:
        """Has the Lighthouse count the group out for good, as an operator would.

        Its processes end themselves, with code 3, and it is started again. Blocks for a round trip,
        10 s at most. Raises ClusterError also if the Lighthouse does not answer, knows no such group
        or cannot write that down.
        """
        address, job = self.lighthouse_address, self.settings.facts.job
        with self._supervisor.group(group) as found:
            found.evict(
                lambda: _count_out(address, job, group, self.settings.access()), self._supervisor.step()
            )

    def pause(self, group: int, rank: int | None = None) -> None:
        """Stops with SIGSTOP the whole group, or the worker of one rank."""
        with self._supervisor.group(group) as found:
            found.pause(rank)

    def resume(self, group: int) -> None:
        """Lets whatever of the group is stopped go on."""
        with self._supervisor.group(group) as found:
            found.resume()

    def kill_lighthouse(self, down_s: float | None = None) -> None:
        """Kills the Lighthouse with SIGKILL. Does not wait for its return.

        It is started again after down_s seconds, on the same port and state; None: it stays down
        until start_lighthouse().
        """
        self._supervisor.kill_lighthouse(down_s)

    def start_lighthouse(self) -> None:
        """Starts it again, on the same port and state; blocks until it listens, 60 s at most."""
        with self._supervisor.lighthouse() as lighthouse:
            lighthouse.start()
        self._wait_for_lighthouse()

    def pause_lighthouse(self) -> None:
        """Stops the Lighthouse with SIGSTOP: its port stays open, and nobody answers."""
        with self._supervisor.lighthouse() as lighthouse:
            lighthouse.pause()

    def resume_lighthouse(self) -> None:
        """Lets a paused Lighthouse go on."""
        with self._supervisor.lighthouse() as lighthouse:
            lighthouse.resume()

    @property
    def _supervisor(self) -> Supervisor:
        if self._running is None:
            raise ClusterError("the cluster has not been started: call start(), or use it in a `with`.")
        return self._running.supervisor

    def _start_all(self, supervisor: Supervisor) -> None:
        with supervisor.lighthouse() as lighthouse:
            lighthouse.start()
        self._wait_for_lighthouse()
        supervisor.launch_groups()

    def _wait_for_lighthouse(self) -> None:
        self._wait_for(self._supervisor.lighthouse_up, _LIGHTHOUSE_START_S, "the Lighthouse to listen")

    def _reached(self, step: int, group: int | None, what: str) -> bool:
        over = self._supervisor.finished()
        if self.step(group) >= step:
            return True
        if over:
            raise ClusterError(
                f"waited for {what}, and the job has ended before.\n{self._supervisor.tails(all_groups=True)}"
            )
        return False

    def _wait_for(self, reached: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached():
            self.check()
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {timeout_s:g} s for {what}.\n{self._supervisor.tails()}")
            time.sleep(_TICK_S)


def _count_out(address: str, job: str, group: int, access: Access) -> None:
    try:
        known = evict(address, job, group, access=access)
    except LighthouseError as error:
        raise ClusterError(f"group {group} was not evicted: {error}") from None
    if not known:
        raise ClusterError(f"group {group} was not evicted: the Lighthouse knows no living one of job {job}.")
