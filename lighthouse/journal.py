"""What a job has on disk, what is still to be written, and the quorum that waits for its record."""

from dataclasses import replace

from lighthouse.effects import Persist
from lighthouse.model import JobRecord, Quorum


class Journal:
    """Every quorum with a new id is written before it is answered. Time is handed in."""

    def __init__(self, record: JobRecord, *, step_record_s: float) -> None:
        """Start from what is on disk. The bare step is written at least every `step_record_s`."""
        self.record = record
        self.proposed: Quorum | None = None
        self._durable = record
        self._durable_at_s = float("-inf")
        self._step_record_s = step_record_s

    @property
    def is_settled(self) -> bool:
        """Whether all of the record is on disk."""
        return self.record == self._durable

    @property
    def end_is_durable(self) -> bool:
        """Whether all that is known about the job's end is on disk."""
        return self.record.finished_step == self._durable.finished_step

    def amend(self, **changes: object) -> None:
        """Change the record; it is written at the next flush."""
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]

    def propose(self, quorum: Quorum, *, changed: bool) -> Persist | None:
        """The write that must be durable before the quorum is answered; None: answer it at once."""
        restore = self.record.restore
        reached = restore is None or quorum.max_step >= restore.save.step
        record = replace(
            self.record,
            quorum_id=quorum.quorum_id,
            members=tuple(member.id.text for member in quorum.members),
            max_step=max(self.record.max_step, quorum.max_step),
            restore=None if reached else restore,
        )
        # The first step is recorded at once: from then on nobody starts the job afresh.
        if changed or (record.max_step > 0) != (self._durable.max_step > 0):
            self.proposed = quorum
            return Persist(record=record)
        self.record = record
        return None

    def flush(self, now_s: float) -> list[Persist]:
        """Write what is not durable yet; the bare step only every now and then.

        A record that trails by some steps lets nobody in wrongly: each change of membership
        writes it, so it is never behind the step of a group that was left out.
        """
        if self.record.is_blank or self.is_settled or self.proposed is not None:
            return []
        only_step = replace(self.record, max_step=0) == replace(self._durable, max_step=0)
        due = now_s - self._durable_at_s >= self._step_record_s
        return [Persist(record=self.record)] if due or not only_step else []

    def written(self, record: JobRecord, now_s: float) -> tuple[Quorum | None, bool]:
        """A record is on disk: the quorum to be answered now, if any, and whether its id is new."""
        changed = record.quorum_id != self._durable.quorum_id
        self._durable, self._durable_at_s = record, now_s
        quorum = self.proposed
        if quorum is None or quorum.quorum_id != record.quorum_id:
            return None, changed
        self.proposed = None
        self.amend(
            quorum_id=record.quorum_id,
            members=record.members,
            max_step=record.max_step,
            restore=record.restore,
        )
        return quorum, changed

    def adopt(self, record: JobRecord, now_s: float) -> None:
        """Go on from a record that is on disk already."""
        self.record = self._durable = record
        self._durable_at_s = now_s

    def failed(self) -> Quorum | None:
        """A record could not be written: the quorum that is given up for now, if any."""
        quorum, self.proposed = self.proposed, None
        return quorum
