"""The stream that every rank holds to the Lighthouse: who it is, how it goes, and what it must know."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any

from lighthouse.client import (
    OPEN,
    Access,
    AttachStream,
    ColdStart,
    ColdStartAnswer,
    Hello,
    LighthouseError,
    LockedOutError,
    Phase,
    RefusedError,
    RoundTimes,
    SavesFound,
    StartMode,
    UnreachableError,
    WatchStream,
    demands_token,
    leave,
    propose_save,
    status,
    wait_until_reachable,
    wrong_port,
)
from replica.config import GroupConfig
from replica.errors import RestartError, UserError
from replica.notices import Notices

LOG = logging.getLogger("headway")
OPEN_TIMEOUT_S = 30.0
STATUS_TIMEOUT_S = 5.0


class StartCheck(IntEnum):
    """How a group is to begin. Shared between ranks as integers."""

    GO_ON = 0
    FINISHED = 1
    JOB_LOST = 2
    # Steps may be on record: see `begin_cold`.
    COLD = 3


class LighthouseStream:
    """Owned by the training thread. Rank 0 speaks for the group, the other ranks only hear.

    A Lighthouse that serves torchft's wire alone is accepted: then there is no start mode, a death
    is seen by heartbeats, and nobody is told anything.
    """

    def __init__(
        self,
        config: GroupConfig,
        rank: int,
        notices: Notices,
        access: Access = OPEN,
        seconds_by_cause: Callable[[], Mapping[str, float]] | None = None,
        round_times: Callable[[], RoundTimes] | None = None,
    ) -> None:
        """`access` is what this group has to show to the Lighthouse.

        `seconds_by_cause`: where its time went, and `round_times`, how the rounds of this rank went: the
        Lighthouse is told both once a second. Any thread.
        """
        self._seconds_by_cause = seconds_by_cause
        self._round_times = round_times
        self._config = config
        self._access = access
        self._rank = rank
        self._notices = notices
        self._attach: AttachStream | None = None
        self._watch: WatchStream | None = None
        self._mode: StartMode | None = None
        self._replica_id: str | None = None
        self._unanswered_since_s: float | None = None

    def wait_until_reachable(self) -> None:
        """Block until the Lighthouse answers. Raises RestartError after `lighthouse_wait_s`.

        Raises UserError where something else answers.
        """
        address, wait_s = self._config.lighthouse, self._config.timeouts.lighthouse_wait_s
        try:
            wait_until_reachable(address, wait_s, lambda waited_s: _tell_waiting(address, waited_s, wait_s))
        except UnreachableError as error:
            raise RestartError(str(error)) from None

    def attach(self, replica_id: str, group_world_size: int, fingerprint: str, platform: str) -> StartCheck:
        """On rank 0, open the stream of this incarnation and learn how to start.

        Blocks for a round trip, or a few where there is a token.
        """
        self._replica_id = replica_id
        hello = self._hello(replica_id, group_world_size, fingerprint, platform)
        self._attach = AttachStream(
            self._config.lighthouse,
            hello,
            on_notice=self._notices.hear,
            access=self._access,
            round_times=self._round_times,
            seconds_by_cause=self._seconds_by_cause,
        )
        try:
            welcome = self._attach.open(OPEN_TIMEOUT_S)
        except RefusedError as error:
            raise UserError(str(error)) from None
        except UnreachableError as error:
            raise RestartError(str(error)) from None
        self._warn_if_unguarded()
        self._mode = None if welcome is None else welcome.start_mode
        LOG.info("start mode: %s", "heartbeats only" if self._mode is None else self._mode.name.lower())
        if self._mode is StartMode.FINISHED:
            return StartCheck.FINISHED
        may_be_saved = self._mode is StartMode.FRESH and self._config.backstop is not None
        cold = may_be_saved or self._mode in (StartMode.HEAL, StartMode.RESTORE)
        return StartCheck.COLD if cold else StartCheck.GO_ON

    def _warn_if_unguarded(self) -> None:
        """Whoever gave a token takes the job for guarded, which it is only if the Lighthouse has it, too."""
        if not self._access.token:
            return
        address = self._config.lighthouse
        with suppress(LighthouseError):
            if not demands_token(address, self._access):
                LOG.warning(
                    "group %d: the Lighthouse at %s demands no token: whoever reaches it can join and end "
                    "this job; start it with the same --token-file",
                    self._config.group,
                    address,
                )

    def propose(self, found: SavesFound | None) -> ColdStartAnswer:
        """On rank 0, ask how to begin. `found`: what it has seen if it has looked for saves.

        Blocks for a round trip; an answer that does not come is one to wait for. Raises RestartError
        when none has come for `lighthouse_wait_s`.
        """
        assert self._replica_id is not None
        try:
            answer = propose_save(
                self._config.lighthouse,
                self._replica_id,
                found,
                timeout_s=OPEN_TIMEOUT_S,
                access=self._access,
            )
        except UnreachableError as error:
            self._unanswered_since_s = self._unanswered_since_s or time.monotonic()
            if time.monotonic() - self._unanswered_since_s > self._config.timeouts.lighthouse_wait_s:
                raise RestartError(str(error)) from None
            return ColdStartAnswer(verdict=ColdStart.WAIT, cause=str(error))
        except RefusedError as error:
            raise RestartError(str(error)) from None
        self._unanswered_since_s = None
        return answer

    def status(self) -> Mapping[str, Any] | None:
        """The Lighthouse's status document, None when it does not answer in a moment. Blocks; any thread."""
        with suppress(LighthouseError):
            return status(self._config.lighthouse, STATUS_TIMEOUT_S, access=self._access)
        return None

    def saved(self, step: int, quorum_id: int, size: int, seconds: float) -> None:
        """Tell of a save that is durable, of `size` bytes. Does not block; any thread."""
        if self._attach is not None:
            self._attach.saved(step, quorum_id, size, seconds)

    def save_failed(self, step: int, reason: str) -> None:
        """Tell of a save that failed. Does not block; any thread."""
        if self._attach is not None:
            self._attach.save_failed(step, reason)

    def watch(self, replica_id: str, group_world_size: int, fingerprint: str, platform: str) -> None:
        """On other ranks than 0, once rank 0 has attached: open the stream that only hears.

        Raises UserError where token or certificate of this rank do not fit, and RestartError.
        """
        hello = self._hello(replica_id, group_world_size, fingerprint, platform)
        self._watch = WatchStream(
            self._config.lighthouse,
            hello,
            on_notice=self._notices.hear,
            access=self._access,
            round_times=self._round_times,
        )
        try:
            self._watch.open(OPEN_TIMEOUT_S)
        except LockedOutError as error:
            raise UserError(str(error)) from None
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
            backstop=self._config.backstop is not None,
        )

    @property
    def tells_deaths(self) -> bool:
        """Whether the Lighthouse has our own service, so that notices will come."""
        return self._mode is not None

    @property
    def must_heal(self) -> bool:
        """Whether steps are on record, so that the state which a group starts with is worth nothing."""
        return self._mode is StartMode.HEAL

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

    def goodbye(self, *, finished: bool, step: int, may_save_s: float = 0.0) -> None:
        """Leave as planned, so that the end of the streams is not taken for a death.

        `may_save_s`: for so long whoever starts is to wait for a last save, or until `left` is said.
        """
        if self._attach is not None:
            self._attach.goodbye(finished, step, may_save_s=may_save_s)

    def left(self) -> None:
        """On rank 0, after a goodbye: the last save is there, or will not come. Blocks for a moment."""
        if self.tells_deaths and self._replica_id is not None:
            with suppress(LighthouseError):
                leave(self._config.lighthouse, self._replica_id, STATUS_TIMEOUT_S, access=self._access)

    def close(self) -> None:
        """End the stream; without a goodbye before, the Lighthouse counts this group as dead."""
        for stream in (self._attach, self._watch):
            if stream is not None:
                stream.close()
        self._attach = self._watch = None


def _tell_waiting(address: str, waited_s: float, wait_s: float) -> None:
    if int(waited_s) % 10 == 1:
        if (why := wrong_port(address)) is not None:
            raise UserError(why)
        LOG.warning("waiting for the Lighthouse at %s: %.0f s of %g s", address, waited_s, wait_s)


def act_on(check: StartCheck, job: str) -> bool:
    """Whether the job is finished. Raises UserError where its state is lost."""
    if check is StartCheck.JOB_LOST:
        raise UserError(
            f"every group of job {job} died, and there is no complete save to go on from: start it over "
            f"with `python -m lighthouse forget ADDR {job}`"
        )
    return check is StartCheck.FINISHED
