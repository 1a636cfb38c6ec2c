"""What a local cluster owns while it runs, and gives back when it ends."""

import os
import secrets
import threading

from replica.ledger import EventKind, EventLog
from train.cluster import processes
from train.cluster.commands import ClusterSettings
from train.cluster.errors import ClusterError
from train.cluster.run_folder import hold, let_go
from train.cluster.supervisor import Supervisor

_TICK_S = 0.05


class Running:
    """What exists while a cluster runs: its guard, its event log, its supervisor and their thread.

    Starts the thread, but no process that trains: that is asked of the supervisor. Making it raises
    UserError, before anything is written, while another cluster runs in the same folder.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        mark = secrets.token_hex(8)
        self._folder = hold(settings.out)
        try:
            self._events = EventLog(settings.out)
            _write_job(self._events, settings)
            self._guard = processes.Guard(mark)
        except BaseException:
            let_go(self._folder)
            raise
        self.supervisor = Supervisor(settings, mark=mark, events=self._events, inherited=dict(os.environ))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="cluster-supervisor", daemon=True)
        self._thread.start()

    def close(self, grace_s: float) -> list[int]:
        """Ends everything; returns the pids that could not be ended."""
        self._stopping.set()
        self._thread.join()
        left = self.supervisor.shutdown(grace_s)
        self._guard.close()
        self._events.close()
        let_go(self._folder)
        return [pid for pid in left if processes.is_running(pid)]

    def _supervise(self) -> None:
        while not self._stopping.wait(_TICK_S):
            try:
                self.supervisor.tick()
            except Exception as error:
                # Whoever waits for the cluster must hear of it: nobody looks at this thread.
                failure = ClusterError(f"the supervisor failed: {error!r}")
                failure.__cause__ = error
                self.supervisor.fail(failure)
                return


def _write_job(events: EventLog, settings: ClusterSettings) -> None:
    facts = settings.facts
    events.write(
        EventKind.JOB_STARTED,
        job=facts.job,
        groups=settings.groups,
        ranks=settings.ranks,
        rounds=facts.rounds,
        mode=facts.mode,
        seed=facts.seed,
        steps=facts.steps,
        max_restarts=settings.max_restarts,
        lighthouse_kind=settings.lighthouse_kind,
    )
