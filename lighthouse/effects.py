"""What a job's machine asks its shell to do, in this order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lighthouse.model import JobRecord, Notice, Quorum, Refusal


class Happening(StrEnum):
    """What is worth a line in the log. The value is the event's name."""

    APPEARED = "replica_appeared"
    ATTACHED = "replica_attached"
    GONE = "replica_gone"
    HEARD_AGAIN = "replica_heard_again"
    DRAINED = "replica_asked_to_leave"
    REFUSED = "replica_refused"
    SUSPECT = "replica_suspect"
    SLOW = "replica_slow"
    ATTEMPT_OVER = "attempt_over"
    QUORUM = "quorum_changed"
    FEWER = "fewer_groups_than_expected"
    WAITING = "quorum_waiting"
    FINISHED = "job_finished"
    SAVED = "job_saved"
    SAVE_FAILED = "save_failed"
    RESTORE_DECIDED = "disaster_restore"
    NOT_RECORDED = "record_not_written"


@dataclass(frozen=True, kw_only=True, slots=True)
class Persist:
    """Make the record durable, then tell the machine: `persisted` or `persist_failed`."""

    record: JobRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Answer these calls with the quorum."""

    quorum: Quorum
    calls: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse:
    """End a call with an error."""

    call: int
    refusal: Refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class Tell:
    """Send a notice down these streams."""

    streams: tuple[int, ...]
    notice: Notice


@dataclass(frozen=True, kw_only=True, slots=True)
class CloseStream:
    """End a stream with an error."""

    stream: int
    refusal: Refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Write a line to the log. The fields hold no secret."""

    happening: Happening
    fields: Mapping[str, object] = field(default_factory=dict)


Effect = Persist | Answer | Refuse | Tell | CloseStream | Note
