"""A group's saves: what they say of the job, who is told of them, and the last one before it leaves."""

import logging
import time
from collections.abc import Collection, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from lighthouse.client import Phase
from replica.backstop import Backstop, Boundary, Facts, Saved
from replica.backstop.backstop import PATIENCE_S
from replica.backstop.schedule import writer_of
from replica.config import BackstopConfig
from replica.ledger import EventKind

if TYPE_CHECKING:
    from replica.group import ReplicaGroup

LOG = logging.getLogger("headway")
POLL_S = 0.5


class LastSave(Enum):
    """What became of the save of the last step, as far as this group knows."""

    DURABLE = "durable"
    UNKNOWN = "unknown"
    IN_VAIN = "in_vain"
    ATTEMPT_OVER = "attempt_over"


class Saves:
    """The backstop of one group. Belongs to the training thread; its methods are collectives."""

    def __init__(self, group: "ReplicaGroup", config: BackstopConfig) -> None:
        """Raises UserError for a URL that cannot be used."""
        self._group = group
        self._config = config
        self._backstop = Backstop(
            config=config,
            job=group.config.job,
            group=group.config.group,
            incarnation=group.record.incarnation,
            last_step=group.config.steps,
            ranks=group.ranks,
            state=group.state,
            facts=self._facts,
            on_saved=self._on_saved,
            on_failed=self._on_failed,
            on_late=self._on_late,
        )
        self.vault = self._backstop.vault
        # Why the state that this group leaves behind is not safe, if it is this group's to save.
        self.failure: str | None = None
        self.last: LastSave | None = None

    def after_commit(self, quorum_id: int, owners: Iterable[int], digest: str) -> None:
        """Begin a save where one is due and falls to this group. Blocks for a copy of the shard.

        owners: the groups that computed the step. digest: of its state, empty where none was taken.
        """
        self._backstop.after_commit(
            Boundary(step=self._group.step, quorum_id=quorum_id, owners=frozenset(owners), digest=digest)
        )

    def moved(self, quorum_id: int | None = None) -> None:
        """The state is not that of the last commit: a peer's, or that of a save of this quorum."""
        group = self._group
        boundary = None
        if quorum_id is not None:
            owners = frozenset({group.config.group})
            boundary = Boundary(step=group.step, quorum_id=quorum_id, owners=owners, digest=group.last_digest)
        self._backstop.moved(boundary)

    def at_the_end(self, quorum_id: int, members: Collection[int]) -> LastSave:
        """All members have the last step: the lowest makes it durable, and only then may any of them go.

        When that one dies over it, or cannot do it, the next quorum has another. Blocks until the
        save is there, or will not come.
        """
        group = self._group
        group.stream.progress(group.step, Phase.SAVE)
        if writer_of(members) != group.config.group:
            self.last = self._wait_for_the_writer(quorum_id)
            return self.last
        last = Boundary(
            step=group.step, quorum_id=quorum_id, owners=frozenset(members), digest=group.last_digest
        )
        self.failure = self._backstop.finish(last, limit_s=self._config.timeout_s)
        self.last = LastSave.DURABLE
        if self.failure is not None:
            group.stream.abandon(quorum_id, self.failure)  # another is to try
            self.last = LastSave.IN_VAIN
        return self.last

    def _wait_for_the_writer(self, quorum_id: int) -> LastSave:
        """A group that has just healed cannot tell which saves are of this life: the others tell it."""
        group, limit_s = self._group, self._config.timeout_s + PATIENCE_S
        deadline_s = time.monotonic() + limit_s
        knows = self._backstop.knows_of_saves()
        if not all(row[0] for row in group.ranks.share([knows])):
            return LastSave.UNKNOWN
        while not self._backstop.is_saved(group.step):
            over = group.notices.over(quorum_id) is not None
            rows = group.ranks.share([over, time.monotonic() > deadline_s])
            if any(row[0] for row in rows):
                return LastSave.ATTEMPT_OVER
            if any(row[1] for row in rows):
                self.failure = f"the last step was not saved by another group within {limit_s:g} s"
                return LastSave.IN_VAIN
            time.sleep(POLL_S)
        return LastSave.DURABLE

    @property
    def is_fenced(self) -> bool:
        """Whether the last save was given up since a newer quorum has published: others went on."""
        return self._backstop.is_fenced

    @property
    def is_alone(self) -> bool:
        """Whether no other group computed the newest step."""
        return self._backstop.is_alone

    def before_leaving(self) -> None:
        """Asked to leave as the last one: save the newest step unless it is saved, within the grace."""
        group, own = self._group, None
        if not self.is_alone:  # whoever would write it is gone, or this group has healed and computed nothing
            own = Boundary(
                step=group.step,
                quorum_id=group.bridge.quorum_id,
                owners=frozenset({group.config.group}),
                digest=group.last_digest,
            )
        self.failure = self._backstop.finish(own, limit_s=self._config.grace_s)

    def settle(self) -> None:
        """Asked to leave while others go on: give a save that is being written the grace, no more."""
        if not self._backstop.settle(limit_s=self._config.grace_s) and self._group.rank == 0:
            LOG.info("a save in flight is given up: others go on with the job, and save again")

    def _facts(self, digest: str) -> Facts:
        group = self._group
        return Facts(
            job=group.config.job,
            group=group.config.group,
            incarnation=group.record.incarnation,
            group_world_size=group.world_size,
            mode=str(group.config.mode),
            layout=group.state.layout(),
            digest=digest or None,
            fingerprint=group.fingerprint(),
            platform=group.platform(),
            configuration=group.config.configuration,
            saved_at_s=time.time(),
        )

    def _on_saved(self, saved: Saved) -> None:
        name, written = saved.name, saved.written
        LOG.info("step %s is saved: %.1f MB in %.1f s", name.step, written.bytes / 1e6, written.seconds)
        if written.purge_problem is not None:
            self._group.warn(f"old saves could not be removed: {written.purge_problem}")
        self._group.stream.saved(name.step, name.quorum_id, written.bytes, written.seconds)
        self._group.record.event(
            EventKind.SAVE,
            step=name.step,
            quorum_id=name.quorum_id,
            save=name.text,
            bytes=written.bytes,
            seconds=round(written.seconds, 3),
            blocked_s=round(saved.blocked_s, 4),
        )

    def _on_failed(self, step: int, reason: str) -> None:
        self._group.stream.save_failed(step, reason)
        self._group.record.event(EventKind.SAVE_FAILED, step=step, reason=reason)

    def _on_late(self, step: int, since_s: float) -> None:
        self._group.warn(f"the save of step {step} takes {since_s:.1f} s so far: the next one waits for it")
        self._group.record.event(EventKind.SAVE_LATE, step=step, seconds=round(since_s, 3))
