"""The stream that rank 0 of a group holds to the Lighthouse: who it is, how to start, how it goes."""

import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from lighthouse.client import (
    AttachStream,
    Hello,
    LighthouseError,
    Phase,
    RefusedError,
    StartMode,
    UnreachableError,
    status,
    wait_until_reachable,
)
from replica.config import GroupConfig
from replica.errors import RestartError, UserError

LOG = logging.getLogger("headway")
ATTACH_TIMEOUT_S = 30.0


class StartCheck(IntEnum):
    """What a group that was told to heal, and found nobody ahead of it, is to do. Shared as integers."""

    GO_ON = 0
    FINISHED = 1
    TRY_AGAIN = 2
    JOB_LOST = 3


def check_start(record: Mapping[str, Any] | None, group: int) -> StartCheck:
    """Judge a start at step 0 from what the Lighthouse has on record of the job (pure).

    A fresh group must never become the whole job while steps are on record: it would take the job
    back to random weights.
    """
    if record is None or record.get("max_step", 0) <= 0:
        return StartCheck.GO_ON
    if record.get("finished_step") is not None:
        return StartCheck.FINISHED
    others = [each for each in record.get("groups", []) if each["group"] != group and each["step"] > 0]
    return StartCheck.TRY_AGAIN if others else StartCheck.JOB_LOST


class LighthouseStream:
    """Owned by the training thread; only rank 0 talks, on other ranks every method does nothing.

    A Lighthouse that serves torchft's wire alone is accepted: then there is no start mode, and a
    death is seen by heartbeats.
    """

    def __init__(self, config: GroupConfig, rank: int) -> None:
        self._config = config
        self._first = rank == 0
        self._stream: AttachStream | None = None
        self._mode: StartMode | None = None

    def wait_until_reachable(self) -> None:
        """Block until the Lighthouse answers. Raises RestartError after `lighthouse_wait_s`."""
        if not self._first:
            return
        address, wait_s = self._config.lighthouse, self._config.timeouts.lighthouse_wait_s
        try:
            wait_until_reachable(address, wait_s, lambda waited_s: _tell_waiting(address, waited_s, wait_s))
        except UnreachableError as error:
            raise RestartError(str(error)) from None

    def attach(self, replica_id: str, group_world_size: int) -> bool:
        """Open the stream for this incarnation; whether the job is finished already.

        Blocks for one round trip.
        """
        if not self._first:
            return False
        hello = Hello(
            job=self._config.job,
            group=self._config.group,
            replica_id=replica_id,
            group_world_size=group_world_size,
            fingerprint=self._config.fingerprint,
            platform="",
            step=0,
        )
        self._stream = AttachStream(self._config.lighthouse, hello)
        try:
            welcome = self._stream.open(ATTACH_TIMEOUT_S)
        except RefusedError as error:
            raise UserError(str(error)) from None
        except UnreachableError as error:
            raise RestartError(str(error)) from None
        self._mode = None if welcome is None else welcome.start_mode
        LOG.info("start mode: %s", "heartbeats only" if self._mode is None else self._mode.name.lower())
        return self._mode is StartMode.FINISHED

    def first_quorum(self, healed: bool) -> StartCheck:
        """What to do after the first quorum, which either healed this group or found nobody ahead."""
        if not self._first or healed or self._mode is not StartMode.HEAL:
            return StartCheck.GO_ON
        try:
            jobs = {job["job"]: job for job in status(self._config.lighthouse)["jobs"]}
        except LighthouseError:
            return StartCheck.TRY_AGAIN
        return check_start(jobs.get(self._config.job), self._config.group)

    def progress(self, step: int, phase: Phase) -> None:
        """Tell step and phase. Does not block; the latest wins."""
        if self._stream is not None:
            self._stream.progress(step, phase)

    def goodbye(self, *, finished: bool, step: int) -> None:
        """Leave as planned, so that the end of the stream is not taken for a death."""
        if self._stream is not None:
            self._stream.goodbye(finished, step)

    def close(self) -> None:
        """End the stream; without a goodbye before, the Lighthouse counts this group as dead."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _tell_waiting(address: str, waited_s: float, wait_s: float) -> None:
    if int(waited_s) % 10 == 1:
        LOG.warning("waiting for the Lighthouse at %s: %.0f s of %g s", address, waited_s, wait_s)


def act_on(check: StartCheck, job: str) -> bool:
    """Whether the job is finished. Raises RestartError or UserError where this group must not go on."""
    if check is StartCheck.TRY_AGAIN:
        raise RestartError(f"a group of job {job} lives but gave no state: coming back as a new incarnation")
    if check is StartCheck.JOB_LOST:
        raise UserError(
            f"every group of job {job} died and no state is left: start it over with "
            f"`python -m lighthouse forget ADDR {job}`"
        )
    return check is StartCheck.FINISHED
