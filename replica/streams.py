"""The stream that every rank holds to the Lighthouse: who it is, how it goes, and what it must know."""

import logging
import time
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
    WatchStream,
    status,
    wait_until_reachable,
)
from replica.config import GroupConfig
from replica.errors import RestartError, UserError
from replica.notices import Notices

LOG = logging.getLogger("headway")
OPEN_TIMEOUT_S = 30.0
# How long a group that must heal looks for a living one that has the state.
LOOK_FOR_STATE_S = 15.0
LOOK_INTERVAL_S = 0.5


class StartCheck(IntEnum):
    """What a starting group finds when steps are on record. Shared between ranks as integers."""

    GO_ON = 0
    FINISHED = 1
    TRY_AGAIN = 2
    JOB_LOST = 3


def check_start(record: Mapping[str, Any] | None, group: int) -> StartCheck:
    """Judge a start at step 0 from what the Lighthouse has on record of the job (pure).

    A fresh group must never become the whole job while steps are on record: it would take the job
    back to random weights. TRY_AGAIN: another group lives and has the state.
    """
    if record is None or record.get("max_step", 0) <= 0:
        return StartCheck.GO_ON
    if record.get("finished_step") is not None:
        return StartCheck.FINISHED
    others = [each for each in record.get("groups", []) if each["group"] != group and each["step"] > 0]
    return StartCheck.TRY_AGAIN if others else StartCheck.JOB_LOST


class LighthouseStream:
    """Owned by the training thread. Rank 0 speaks for the group, the other ranks only hear.

    A Lighthouse that serves torchft's wire alone is accepted: then there is no start mode, a death
    is seen by heartbeats, and nobody is told anything.
    """

    def __init__(self, config: GroupConfig, rank: int, notices: Notices) -> None:
        self._config = config
        self._rank = rank
        self._notices = notices
        self._attach: AttachStream | None = None
        self._watch: WatchStream | None = None
        self._mode: StartMode | None = None

    def wait_until_reachable(self) -> None:
        """Block until the Lighthouse answers. Raises RestartError after `lighthouse_wait_s`."""
        address, wait_s = self._config.lighthouse, self._config.timeouts.lighthouse_wait_s
        try:
            wait_until_reachable(address, wait_s, lambda waited_s: _tell_waiting(address, waited_s, wait_s))
        except UnreachableError as error:
            raise RestartError(str(error)) from None

    def attach(self, replica_id: str, group_world_size: int, fingerprint: str, platform: str) -> StartCheck:
        """On rank 0, open the stream of this incarnation and learn how to start.

        Blocks for a round trip; when this group has to heal, until a living group with the state is
        seen, at most LOOK_FOR_STATE_S.
        """
        hello = self._hello(replica_id, group_world_size, fingerprint, platform)
        self._attach = AttachStream(self._config.lighthouse, hello, on_notice=self._notices.hear)
        try:
            welcome = self._attach.open(OPEN_TIMEOUT_S)
        except RefusedError as error:
            raise UserError(str(error)) from None
        except UnreachableError as error:
            raise RestartError(str(error)) from None
        self._mode = None if welcome is None else welcome.start_mode
        LOG.info("start mode: %s", "heartbeats only" if self._mode is None else self._mode.name.lower())
        if self._mode is StartMode.FINISHED:
            return StartCheck.FINISHED
        return self._look_for_state() if self._mode is StartMode.HEAL else StartCheck.GO_ON

    def watch(self, replica_id: str, group_world_size: int, fingerprint: str, platform: str) -> None:
        """On other ranks than 0, once rank 0 has attached: open the stream that only hears."""
        hello = self._hello(replica_id, group_world_size, fingerprint, platform)
        self._watch = WatchStream(self._config.lighthouse, hello, on_notice=self._notices.hear)
        try:
            self._watch.open(OPEN_TIMEOUT_S)
        except LighthouseError as error:
            raise RestartError(str(error)) from None

    def _hello(self, replica_id: str, group_world_size: int, fingerprint: str, platform: str) -> Hello:
        return Hello(
            job=self._config.job,
            group=self._config.group,
            replica_id=replica_id,
            group_world_size=group_world_size,
            fingerprint=fingerprint,
            platform=platform,
            step=0,
            group_rank=self._rank,
        )

    @property
    def tells_deaths(self) -> bool:
        """Whether the Lighthouse has our own service, so that notices will come."""
        return self._mode is not None

    @property
    def must_heal(self) -> bool:
        """Whether steps are on record, so that the state which a group starts with is worth nothing."""
        return self._mode is StartMode.HEAL

    def _look_for_state(self) -> StartCheck:
        deadline = time.monotonic() + LOOK_FOR_STATE_S
        while (check := self._check_record()) is StartCheck.JOB_LOST and time.monotonic() < deadline:
            time.sleep(LOOK_INTERVAL_S)
        return StartCheck.GO_ON if check is StartCheck.TRY_AGAIN else check

    def _check_record(self) -> StartCheck:
        try:
            jobs = {job["job"]: job for job in status(self._config.lighthouse)["jobs"]}
        except LighthouseError:
            return StartCheck.TRY_AGAIN
        return check_start(jobs.get(self._config.job), self._config.group)

    def first_quorum(self, healed: bool) -> StartCheck:
        """What to do after the first quorum, which either healed this group or found nobody ahead."""
        if healed or self._mode is not StartMode.HEAL:
            return StartCheck.GO_ON
        return self._check_record()

    def progress(self, step: int, phase: Phase, rounds: int | None = None) -> None:
        """Tell step and phase. Does not block; the latest wins. Any thread.

        `rounds`, of the compute phase, is how many were dealt to this group in this attempt: without
        it, a group that was dealt more of them than others would be taken for slow.
        """
        if self._attach is not None:
            self._attach.progress(step, phase, rounds)

    def abandon(self, quorum_id: int, cause: str) -> None:
        """Tell that this group has given up an attempt, which is then over for all. Does not block."""
        if self._attach is not None:
            self._attach.abandon(quorum_id, cause)

    def goodbye(self, *, finished: bool, step: int) -> None:
        """Leave as planned, so that the end of the streams is not taken for a death."""
        if self._attach is not None:
            self._attach.goodbye(finished, step)

    def close(self) -> None:
        """End the stream; without a goodbye before, the Lighthouse counts this group as dead."""
        for stream in (self._attach, self._watch):
            if stream is not None:
                stream.close()
        self._attach = self._watch = None


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
