"""The Lighthouse of a local cluster, as a child process that keeps its port over restarts."""

import math
import re
import time
from collections.abc import Mapping

from replica.errors import ExitCode
from replica.ledger import EventKind, EventLog, KillTarget
from train.cluster.children import Child
from train.cluster.commands import HOST, ClusterSettings, LighthouseKind, base_environment, lighthouse_command
from train.cluster.errors import ClusterError, refusal

_FIRST_LINE = {
    LighthouseKind.HEADWAY: re.compile(
        r"^lighthouse listening on http://\S+:(?P<port>\d+), status on (?P<status>\S+)", re.MULTILINE
    ),
    LighthouseKind.TORCHFT: re.compile(r"Lighthouse listening on: http://\S+:(?P<port>\d+)"),
}
_MAX_FAILURES = 5
_STEADY_S = 10.0


class LighthouseChild:
    """Starts a Lighthouse on a free port, and later ones on the same port and state directory.

    One caller at a time. status_url: where its page is, None until it has said so.
    """

    def __init__(
        self, settings: ClusterSettings, *, mark: str, events: EventLog, inherited: Mapping[str, str]
    ) -> None:
        self.child = Child(name="lighthouse", mark=mark, log=settings.out / "logs" / "lighthouse.log")
        self.status_url: str | None = None
        self._settings = settings
        self._events = events
        # torchft's says where it listens only when its log is on.
        self._environment = {**base_environment(inherited), "RUST_LOG": "info"}
        self._port = 0
        self._wanted = False
        self._due_s = math.inf
        self._paused = False
        self._announced = False
        self._failures = 0

    @property
    def address(self) -> str:
        """HOST:PORT for clients. Raises ClusterError before the first one has said its port."""
        if not self._port:
            raise ClusterError("the Lighthouse has not been started.")
        return f"{HOST}:{self._port}"

    @property
    def up(self) -> bool:
        """Whether it has said that it listens, and neither ended nor is paused."""
        return self._announced and self.child.running and not self._paused

    def start(self) -> None:
        """Starts the process; does not wait for it. Raises ClusterError if one runs."""
        if self.child.running:
            raise ClusterError("the Lighthouse runs already.")
        self._wanted, self._paused, self._announced = True, False, False
        self._due_s = math.inf
        self.child.start(lighthouse_command(self._settings, self._port), self._environment)

    def kill(self, step: int, down_s: float | None = None) -> None:
        """Ends it with SIGKILL; step: for the record.

        It stays down for down_s seconds and is then started by tend(); None: until start().
        """
        self._require_running()
        self._wanted = False
        self.child.kill(
            lambda: self._events.write(
                EventKind.KILL, group=None, rank=None, target=KillTarget.LIGHTHOUSE, step=step
            )
        )
        self._events.write(EventKind.LIGHTHOUSE_DOWN, cause="killed")
        self._due_s = math.inf if down_s is None else time.monotonic() + down_s

    def pause(self) -> None:
        """Stops it with SIGSTOP: its socket stays open and nobody answers."""
        self._require_running()
        self._events.write(EventKind.LIGHTHOUSE_DOWN, cause="paused")
        self.child.pause()
        self._paused = True

    def resume(self) -> None:
        """Lets it go on after a pause."""
        self._require_running()
        self.child.resume()
        self._paused = False
        self._events.write(EventKind.LIGHTHOUSE_UP, cause="resumed")

    def release(self) -> None:
        """From now on it may end: it is not started again."""
        self._wanted = False
        self._due_s = math.inf

    def tend(self) -> None:
        """Takes in its first line; starts it if that is due, or if it ended although it should run.

        Raises ClusterError if it says that it cannot run, or ended five times in a row right away.
        """
        if not self._announced:
            self._take_first_line()
        if self._wanted and not self.child.running:
            self._events.write(EventKind.LIGHTHOUSE_DOWN, cause="ended")
            self._count_failure()
            self.start()
        elif time.monotonic() >= self._due_s:
            self.start()

    def _take_first_line(self) -> None:
        found = _FIRST_LINE[self._settings.lighthouse_kind].search(self.child.output())
        if found is None or not self.child.running:
            return
        self._port = int(found["port"])
        # torchft's has its page on the port of its service.
        self.status_url = found.groupdict().get("status", f"http://{self.address}")
        self._announced = True
        self._events.write(EventKind.LIGHTHOUSE_UP, cause="started")

    def _count_failure(self) -> None:
        steady = time.time() - self.child.launched_t > _STEADY_S
        self._failures = 1 if steady else self._failures + 1
        said = f"the Lighthouse cannot run: {self.child.last_sentence()}"
        if self.child.exit_code == ExitCode.DO_NOT_RESTART:
            raise refusal(said)
        if self._failures >= _MAX_FAILURES:
            raise ClusterError(said)

    def _require_running(self) -> None:
        if not self.child.running:
            raise ClusterError("the Lighthouse does not run.")
