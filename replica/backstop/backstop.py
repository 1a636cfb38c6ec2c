"""The saves of one rank: a copy at a step boundary, written behind the training by its whole group."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from replica.backstop.deadline import Deadline
from replica.backstop.manifest import Facts
from replica.backstop.names import SaveName
from replica.backstop.schedule import Schedule, writer_of
from replica.backstop.staging import Staging
from replica.backstop.store import Store, StoreError
from replica.backstop.vault import Vault
from replica.backstop.writing import Fenced, SaveFailedError, Written, write_save
from replica.config import BackstopConfig
from replica.error_line import one_line
from replica.mesh import Ranks
from replica.state import TrainingState

LOG = logging.getLogger("headway")
# The thread that writes gives way to the one that trains.
NICENESS = 10
# By how much the ranks of a group outlast a save: they learn of its end from each other.
PATIENCE_S = 60.0
# How long training may stand still to see whether a save is published.
LOOK_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A save that is durable: its name, what was written, and how long training stood still for it."""

    name: SaveName
    written: Written
    blocked_s: float


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The newest step boundary: `step` steps are committed, the last by quorum `quorum_id`.

    owners: the groups that computed it. digest: of the state there, empty where none was taken.
    """

    step: int
    quorum_id: int
    owners: frozenset[int]
    digest: str


class Backstop:
    """Decides with the other ranks of its group when to save, copies, and has it written.

    All methods belong to the training thread and are collectives of the group. `on_saved` and
    `on_failed` (step and one sentence) are called on rank 0, from any thread, and `on_late` with the step
    and seconds of a save that is still being written when the next is due: that one waits. facts: what a
    manifest says of the job, for a digest. `vault` is what is read when no group is left.
    """

    def __init__(
        self,
        *,
        config: BackstopConfig,
        job: str,
        group: int,
        incarnation: str,
        last_step: int,
        ranks: Ranks,
        state: TrainingState,
        facts: Callable[[str], Facts],
        on_saved: Callable[[Saved], None],
        on_failed: Callable[[int, str], None],
        on_late: Callable[[int, float], None],
    ) -> None:
        """Raises UserError for a URL that cannot be used. Nothing is opened yet."""
        self._config = config
        self._store = Store(config.url, job)
        self._schedule = Schedule(every_steps=config.every_steps, every_s=60 * config.every_minutes)
        self._last_step = last_step
        self._group = group
        self._incarnation = incarnation
        self._ranks = ranks
        self._facts = facts
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._on_late = on_late
        self._overdue = False
        # Of its own: the collectives of a save run beside those of the training thread.
        self._process_group = dist.new_group(
            backend="gloo", timeout=timedelta(seconds=config.timeout_s + PATIENCE_S)
        )
        self._staging = Staging(state, DeviceMesh.from_group(self._process_group, "cpu"))
        self.vault = Vault(
            store=self._store,
            staging=self._staging,
            process_group=self._process_group,
            ranks=ranks,
            timeout_s=config.timeout_s,
        )
        self._thread: threading.Thread | None = None
        self._newest: Boundary | None = None
        self._begun_s = time.monotonic()
        self._begun_step = -1
        self._first_commit = True
        self._failure: str | None = None
        self._fenced: str | None = None
        # Whether a newer quorum has published instead of the last save that was waited for. The same on all.
        self.is_fenced = False

    def after_commit(self, boundary: Boundary) -> None:
        """Begin a save where one is due and this group is to write it. Blocks for the copy only.

        That of the last step is made by `finish`: others may still be waiting for this group.
        """
        if self._first_commit and boundary.step > 1:
            # How old the newest save is, only those know who were here before: better one too many.
            self._begun_s = float("-inf")
        self._newest, self._first_commit = boundary, False
        if self._writes(boundary) and boundary.step < self._last_step and self._due(boundary.step):
            self._save(boundary)

    def moved(self, boundary: Boundary | None) -> None:
        """The state is not that of the last commit any more: of a save that was read, or of a peer (None)."""
        self._newest = boundary

    def finish(self, boundary: Boundary | None = None, *, limit_s: float) -> str | None:
        """Save a boundary, the newest by default, if it is this group's to save; wait until it is durable.

        Blocks at most `limit_s`, and some seconds to see what is there. Returns a sentence where the
        state is not safe though it was this group's to save, else None.
        """
        deadline_s = time.monotonic() + limit_s
        self._wait(deadline_s)
        last = boundary or self._newest
        if last is None or not self._writes(last) or self.is_saved(last.step):
            return None
        if self._begun_step < last.step:
            self._save(last)
            self._wait(deadline_s)
        failure, fenced = self._failure, self._fenced
        late = self._busy or self._begun_step < last.step
        rows = self._ranks.share([late, failure is not None, fenced is not None])
        self.is_fenced = any(row[2] for row in rows)
        if any(row[0] for row in rows):
            return self._fail(last.step, f"it was not written within {limit_s:g} s")
        if failure is None and any(row[1] for row in rows):
            return f"the save of step {last.step} failed on another rank"
        # What has fenced it off may hold another state than this one.
        if any(row[2] for row in rows) and not self.is_saved(last.step):
            return self._fail(last.step, fenced or "it was fenced off on another rank")
        return failure

    def settle(self, *, limit_s: float) -> bool:
        """Wait until what is being written is there, at most `limit_s`; whether nothing is in flight now.

        No collective: the ranks of a group may differ.
        """
        self._wait(time.monotonic() + limit_s)
        return not self._busy

    def knows_of_saves(self) -> bool:
        """Whether `is_saved` can tell: this group has taken part in the step that it holds."""
        return self._newest is not None

    def is_saved(self, step: int) -> bool:
        """Whether the save of this step is published, by this group or by one that had it to do before."""
        since = None if self._newest is None else self._newest.quorum_id
        found = False
        if self._ranks.rank == 0 and since is not None:
            try:
                names = self._store.bounded("listing saves", Deadline(LOOK_S), self._store.published)
            except StoreError:
                names = []
            found = any(name.step == step and name.quorum_id >= since for name in names)
        return bool(self._ranks.share([found])[0][0])

    @property
    def is_alone(self) -> bool:
        """Whether no other group computed the newest step."""
        return self._newest is not None and self._newest.owners == {self._group}

    def _writes(self, boundary: Boundary) -> bool:
        return writer_of(boundary.owners) == self._group

    def _due(self, step: int) -> bool:
        due = self._overdue or self._schedule.due(step, time.monotonic() - self._begun_s)
        return bool(self._ranks.share([due])[0][0]) if self._schedule.by_time else due

    @property
    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wait(self, deadline_s: float) -> None:
        if self._thread is not None:
            self._thread.join(max(0.0, deadline_s - time.monotonic()))

    def _save(self, boundary: Boundary) -> None:
        if any(row[0] for row in self._ranks.share([self._busy])):
            self._put_off()
            return
        began_s = time.monotonic()
        self._begun_s, self._begun_step, self._overdue = began_s, boundary.step, False
        self._fenced = None
        problem = self._copy()
        if any(row[0] for row in self._ranks.share([problem is not None])):
            self._fail(boundary.step, problem or "another rank could not copy its state")
            return
        blocked_s = time.monotonic() - began_s
        work = (boundary, self._facts(boundary.digest), self._staging.tensors(), blocked_s)
        self._thread = threading.Thread(target=self._write, args=work, name="headway-backstop", daemon=True)
        self._thread.start()

    def _copy(self) -> str | None:
        """Copy the state; why that was not possible, for want of memory for example."""
        try:
            self._staging.copy()
        except (RuntimeError, MemoryError) as error:
            return f"the state could not be copied ({one_line(error)})"
        return None

    def _put_off(self) -> None:
        if not self._overdue and self._ranks.rank == 0:
            self._on_late(self._begun_step, time.monotonic() - self._begun_s)
        self._overdue = True

    def _write(
        self, boundary: Boundary, facts: Facts, tensors: Mapping[str, torch.Tensor], blocked_s: float
    ) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            name = SaveName(step=boundary.step, quorum_id=boundary.quorum_id, incarnation=self._incarnation)
            written = write_save(
                self._store,
                name,
                facts,
                tensors,
                process_group=self._process_group,
                keep=self._config.keep,
                timeout_s=self._config.timeout_s,
            )
        except Fenced as fenced:
            self._failure, self._fenced = None, str(fenced)  # the job has a newer save than this one
            if self._ranks.rank == 0:
                LOG.warning("%s", fenced)
        except SaveFailedError as error:
            self._fail(boundary.step, str(error))
        except Exception as error:
            LOG.exception("the save of step %s broke", boundary.step)
            self._fail(boundary.step, one_line(error))
        else:
            self._failure = None
            if self._ranks.rank == 0:
                self._on_saved(Saved(name=name, written=written, blocked_s=blocked_s))

    def _fail(self, step: int, reason: str) -> str:
        sentence = f"the save of step {step} at {self._store.url} failed: {reason}"
        self._failure = sentence
        if self._ranks.rank == 0:
            LOG.error("%s", sentence)
            self._on_failed(step, reason)
        return sentence
