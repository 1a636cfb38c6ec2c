"""What is known during one fetch: who offers which state, which chunks are there, who is at fault.

The lanes of a fetch share it under its lock, and the caller of the fetch asks it how things stand.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import torch

from replica.transfer.agreement import Agreed, Open, agree, difference
from replica.transfer.allotment import Allotment
from replica.transfer.line import Line
from replica.transfer.manifest import Limits, Manifest, misfit
from replica.transfer.memory import Destination, empty_tensors, specs_of
from replica.transfer.report import Cause, DonorShare, Fault, Incident
from replica.transfer.standing import Standing

MAX_INCIDENTS = 100
# When others have nothing to do, a chunk is late after so many times the longest that one took so far.
LATE_FACTOR = 4.0
LATE_AT_LEAST_S = 0.25
# What it means that all donors are out for the same fault.
_CAUSE_OF_ALL = {Fault.MISFIT: Cause.MISFIT, Fault.REFUSED: Cause.REFUSED}


class Progress(Enum):
    """How a fetch stands that has no reason to end badly."""

    PENDING = auto()
    COMPLETE = auto()


@dataclass(kw_only=True)
class DonorRecord:
    """What one donor has offered, sent and done wrong."""

    standing: Standing = field(default_factory=Standing)
    manifest: Manifest | None = None
    last_word: str = "it has not answered"
    rested_at_s: float = 0.0
    bytes: int = 0
    first_at_s: float = 0.0
    last_at_s: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One chunk on its way from one donor, over `line`, into `parts`."""

    donor: str
    chunk: int
    manifest: Manifest
    parts: Sequence[memoryview]
    line: Line
    started_s: float


class Gathering:
    """The shared record of one fetch. All methods may be called from any thread."""

    def __init__(
        self,
        donors: Sequence[str],
        *,
        step: int,
        expected: Mapping[str, torch.Tensor] | Limits,
        fresh: bool,
        gather_s: float,
        late_s: float,
        jitter: Callable[[], float],
    ) -> None:
        self.step = step
        self._expected = expected
        self._fresh = fresh
        self._gather_s = gather_s
        self._late_s = late_s
        self._jitter = jitter
        self._specs = None if isinstance(expected, Limits) else specs_of(expected)
        self._changed = threading.Condition()
        self._donors = {address: DonorRecord() for address in donors}
        self._incidents: list[Incident] = []
        self._reference: Manifest | None = None
        self._destination: Destination | None = None
        self._allotment = Allotment(0)
        self._first_offer_s: float | None = None
        self._tasks: set[Task] = set()
        self._recalled: dict[int, Task] = {}
        self._longest_s = 0.0
        self._lines: set[Line] = set()
        self._over = False
        self._succeeded = False
        self.torn = False

    # What lanes ask and say.

    @property
    def adopted(self) -> Manifest | None:
        """The state that the fetch ended with."""
        return self._reference if self._succeeded else None

    def may_talk(self, donor: str, *, first: bool) -> bool:
        """Block until a lane has a reason to connect to this donor; False when it never will again.

        The first lane of a donor connects at once, the others when there is a chunk to ask for.
        """
        with self._changed:
            while not self._finished_with(donor):
                pause_s = self._donors[donor].rested_at_s - time.monotonic()
                if pause_s <= 0 and (first or self._has_work(donor)):
                    return True
                self._changed.wait(pause_s if pause_s > 0 else None)
            return False

    def enter(self, line: Line) -> None:
        """Register a connection, so that the end of the fetch ends it."""
        with self._changed:
            self._lines.add(line)
            if self._over:
                line.close()

    def leave(self, line: Line) -> None:
        """A connection is of no more use."""
        with self._changed:
            self._lines.discard(line)

    def has_offer(self, donor: str) -> bool:
        """Whether the donor's manifest is known."""
        return self._donors[donor].manifest is not None

    def offer(self, donor: str, manifest: Manifest) -> str | None:
        """Take note of what a donor offers. Returns why it cannot be taken here, or None."""
        specs = self._specs
        wrong = misfit(specs, manifest.layout.tensors) if specs is not None else None
        with self._changed:
            if wrong is None:
                self._donors[donor].manifest = manifest
                self._first_offer_s = self._first_offer_s or time.monotonic()
                self._changed.notify_all()
        return wrong

    def says(self, donor: str, word: str) -> None:
        """Remember what a donor said last, for the sentence at the end."""
        with self._changed:
            self._donors[donor].last_word = word

    def pause(self, donor: str, seconds: float) -> bool:
        """Wait so long, unless the fetch or the donor's part in it ends; False then."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._finished_with(donor), seconds)

    def next_chunk(self, donor: str, line: Line) -> Task | None:
        """Block until there is a chunk to ask of this donor; None when what it offered will not be asked."""
        with self._changed:
            while not self._finished_with(donor) and self._donors[donor].manifest is not None:
                task = self._take(donor, line)
                if task is not None:
                    return task
                self._changed.wait()
            return None

    def verified(self, task: Task) -> None:
        """All bytes of a chunk are there and right."""
        now = time.monotonic()
        with self._changed:
            record = self._donors[task.donor]
            record.standing.praise()
            record.bytes += sum(len(part) for part in task.parts)
            record.first_at_s = record.first_at_s or task.started_s
            record.last_at_s = now
            self._longest_s = max(self._longest_s, now - task.started_s)
            self._tasks.discard(task)
            self._allotment.verified(task.chunk)
            if self._allotment.complete or self._allotment.in_flight == 0:
                self._changed.notify_all()

    def failed(self, task: Task) -> None:
        """A chunk did not come, or came wrong; nobody writes to its memory any more."""
        with self._changed:
            self._tasks.discard(task)
            self._allotment.failed(task.chunk, task.donor)
            self._changed.notify_all()

    def recalled(self, task: Task) -> bool:
        """Whether this chunk was taken away from a donor that was too slow with it."""
        return self._recalled.get(task.chunk) is task

    def blame(self, donor: str, fault: Fault, detail: str, tensor: str | None = None) -> None:
        """Hold a fault against a donor, unless the fetch has ended: then it ended the talk itself."""
        with self._changed:
            record = self._donors[donor]
            if self._over or record.standing.out is not None:
                return
            self._blame(donor, fault, detail, tensor)

    # What the caller of the fetch asks and says.

    def judge(self, now: float) -> Cause | Progress:
        """Whether the whole state is there, may still come, or cannot come, and why."""
        with self._changed:
            self._recall_late(now)
            agreed = self._agree(now)
            if agreed is Open.DISAGREEMENT:
                self._tell_differences()
                return Cause.DISAGREEMENT
            if isinstance(agreed, Agreed):
                self._settle_on(agreed)
                reference = self._reference
                settled = reference is not None and reference.state_id == agreed.state_id
                if settled and agreed.certain and self._allotment.complete:
                    return Progress.COMPLETE
            return self._no_donor_left() or Progress.PENDING

    def wait_changed(self, timeout_s: float) -> None:
        """Block until `judge` may come to something else."""
        with self._changed:
            self._changed.wait(timeout_s)

    def end(self, *, succeeded: bool) -> None:
        """End the fetch. Blocks until no lane writes to the tensors any more, which is soon."""
        with self._changed:
            self._over = True
            self._succeeded = succeeded
            if not succeeded:
                for line in self._lines:
                    line.close()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._tasks)

    @property
    def destination(self) -> Destination | None:
        """Where the bytes went, once it was known where to."""
        return self._destination

    def shares(self) -> tuple[DonorShare, ...]:
        """Who sent how much."""
        with self._changed:
            return tuple(
                DonorShare(donor=address, bytes=record.bytes, seconds=record.last_at_s - record.first_at_s)
                for address, record in self._donors.items()
            )

    def incidents(self) -> tuple[Incident, ...]:
        """What went wrong, in order; the first MAX_INCIDENTS."""
        with self._changed:
            return tuple(self._incidents)

    def last_words(self) -> str:
        """What each donor said or did last, for people."""
        with self._changed:
            return "; ".join(f"{address}: {record.last_word}" for address, record in self._donors.items())

    # Under the lock.

    def _finished_with(self, donor: str) -> bool:
        return self._over or self._donors[donor].standing.out is not None

    def _usable(self) -> set[str]:
        """The donors that offer the state that is being fetched, and can be asked."""
        reference = self._reference
        return {
            address
            for address, record in self._donors.items()
            if record.standing.out is None
            and record.standing.in_a_row == 0
            and record.manifest is not None
            and reference is not None
            and record.manifest.state_id == reference.state_id
        }

    def _has_work(self, donor: str) -> bool:
        manifest, reference = self._donors[donor].manifest, self._reference
        offers = manifest is not None and reference is not None and manifest.state_id == reference.state_id
        return offers and self._allotment.has_work(donor, self._usable())

    def _take(self, donor: str, line: Line) -> Task | None:
        reference, destination = self._reference, self._destination
        if reference is None or destination is None or not self._has_work(donor):
            return None
        chunk = self._allotment.take(donor, self._usable())
        if chunk is None:
            return None
        self.torn = self.torn or self._fresh
        task = Task(
            donor=donor,
            chunk=chunk,
            manifest=reference,
            parts=destination.parts(chunk),
            line=line,
            started_s=time.monotonic(),
        )
        self._tasks.add(task)
        return task

    def _agree(self, now: float) -> Agreed | Open:
        votes = {
            address: record.manifest.state_id
            for address, record in self._donors.items()
            if record.manifest is not None and not record.standing.lied_out
        }
        waiting = sum(
            record.manifest is None and record.standing.out is None and record.standing.in_a_row < 2
            for record in self._donors.values()
        )
        closed = self._first_offer_s is not None and now - self._first_offer_s >= self._gather_s
        return agree(votes, 0 if closed else waiting)

    def _settle_on(self, agreed: Agreed) -> None:
        """Fetch what was agreed on, from now on; leave out those that offer something else."""
        offers = self._offers()
        chosen = next(offer for offer in offers.values() if offer.state_id == agreed.state_id)
        for address, offer in offers.items():
            if offer.state_id != chosen.state_id and self._donors[address].standing.out is None:
                self._blame(address, Fault.DRIFTED, difference(chosen, offer), None)
        before = self._reference
        # Chunks of what was thought to be the state may still be on their way into the same memory.
        if (before is None or before.state_id != chosen.state_id) and not self._allotment.in_flight:
            self._begin(chosen)

    def _tell_differences(self) -> None:
        """Hold it against every donor that another one offers something else: nobody knows who is right."""
        offers = self._offers()
        for address, offer in offers.items():
            for peer, other in offers.items():
                if other.state_id != offer.state_id:
                    differs = difference(offer, other)
                    self._blame(address, Fault.DRIFTED, f"differs from {peer} in {differs}", None)
                    break

    def _offers(self) -> dict[str, Manifest]:
        return {
            address: record.manifest
            for address, record in self._donors.items()
            if record.manifest is not None
        }

    def _begin(self, reference: Manifest) -> None:
        self._reference = reference
        self._allotment = Allotment(reference.layout.chunks)
        self._recalled.clear()
        for record in self._donors.values():
            record.bytes, record.first_at_s = 0, 0.0
        expected = self._expected
        tensors = empty_tensors(reference.layout) if isinstance(expected, Limits) else expected
        fresh = self._fresh or isinstance(expected, Limits)
        self._destination = Destination(tensors, reference.layout, fresh=fresh)
        self._changed.notify_all()

    def _recall_late(self, now: float) -> None:
        """Take chunks away from donors that are slow with them, once, when others have nothing to do."""
        if self._allotment.pending:
            return
        late_s = min(self._late_s, max(LATE_AT_LEAST_S, LATE_FACTOR * self._longest_s))
        for task in self._tasks:
            elsewhere = self._usable() - {task.donor}
            if elsewhere and now - task.started_s > late_s and task.chunk not in self._recalled:
                self._recalled[task.chunk] = task
                task.line.close()

    def _no_donor_left(self) -> Cause | None:
        faults = {record.standing.out for record in self._donors.values()}
        if None in faults:
            return None
        causes = [cause for fault, cause in _CAUSE_OF_ALL.items() if faults == {fault}]
        return causes[0] if causes else Cause.NO_DONOR

    def _blame(self, donor: str, fault: Fault, detail: str, tensor: str | None) -> None:
        record = self._donors[donor]
        record.standing.blame(fault)
        if fault is Fault.GONE:
            record.manifest = None  # it is asked what it has now: it may have staged the same again
        record.last_word = f"{fault.value}, {detail}"
        record.rested_at_s = time.monotonic() + record.standing.pause_s(self._jitter())
        if len(self._incidents) < MAX_INCIDENTS:
            self._incidents.append(Incident(donor=donor, fault=fault, tensor=tensor, detail=detail))
        self._changed.notify_all()
