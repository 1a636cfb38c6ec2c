"""A group's saves: what they say of the job, who is told of them, and the last one before it leaves."""

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from replica.backstop import Backstop, Boundary, Facts, Saved
from replica.config import BackstopConfig
from replica.ledger import EventKind

if TYPE_CHECKING:
    from replica.group import ReplicaGroup

LOG = logging.getLogger("headway")


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

    def after_commit(self, quorum_id: int, owners: Iterable[int], digest: str) -> None:
        """Begin a save where one is due and falls to this group. Blocks for a copy of the shard.

        owners: the groups that computed the step. digest: of its state, empty where none was taken.
        """
        self._backstop.after_commit(
            Boundary(step=self._group.step, quorum_id=quorum_id, owners=frozenset(owners), digest=digest)
        )

    def at_the_end(self, quorum_id: int, members: Iterable[int]) -> None:
        """All members have the last step: the lowest makes it durable, and only then may any of them go.

        When it dies over that, the next quorum has another. Blocks while this group writes.
        """
        last = Boundary(
            step=self._group.step,
            quorum_id=quorum_id,
            owners=frozenset(members),
            digest=self._group.last_digest,
        )
        self.failure = self._backstop.finish(last, limit_s=self._config.timeout_s)

    def are_complete(self) -> bool:
        """Whether the present step is saved, or this group has tried in vain: nothing is left to do."""
        return self.failure is not None or self._backstop.is_saved(self._group.step)

    @property
    def is_alone(self) -> bool:
        """Whether no other group computed the newest step."""
        return self._backstop.is_alone

    def before_leaving(self) -> None:
        """Asked to leave: save the newest step if this group writes, within the grace."""
        self.failure = self._backstop.finish(limit_s=self._config.grace_s)

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
