"""The evidence that every claim is checked against: a ledger per group, an event log per run.

`DIR/ledger/group-G.jsonl` holds one line per attempt of group G, written by its rank 0.
`DIR/events.jsonl` is shared by all processes of a run. Both are JSON lines in UTF-8, appended with
one `write` each: lines never mix, and SIGKILL tears a line at most in the instant of its writing.
They are not flushed to the disk: they survive the death of every process, not of the machine. What there
is no room for is lost and counted, and an event tells how much is missing as soon as there is room.
Floats that are not finite become null.
"""

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from replica.json_fields import integer, integers, number, optional_number, pairs, text
from replica.json_lines import JsonLines

# The largest quorum that a Lighthouse gives, 1024 groups with numbers of six digits, fits into half of it.
MAX_EVENT_BYTES = 16 << 10
MAX_EVENT_TEXT = 512


class Outcome(StrEnum):
    """How an attempt ended: RETRIED keeps the finished rounds, DISCARDED throws them away."""

    COMMITTED = "committed"
    RETRIED = "retried"
    DISCARDED = "discarded"


class Reason(StrEnum):
    """Why an attempt did not commit; NONE on committed lines."""

    NONE = "none"
    QUORUM_FAILED = "quorum_failed"
    CONFIGURE_FAILED = "configure_failed"
    HEAL_FAILED = "heal_failed"
    GROUP_DISAGREED = "group_disagreed"
    REDUCE_FAILED = "reduce_failed"
    ROUNDS_MISSING = "rounds_missing"
    NON_FINITE = "non_finite"
    VOTED_DOWN = "voted_down"
    ATTEMPT_OVER = "attempt_over"


class EventKind(StrEnum):
    """What happened. `EVENT_FIELDS` names the fields that each kind must carry."""

    # Written by the ranks of a group.
    GROUP_STARTED = "group_started"
    QUORUM = "quorum"
    ROUND_DONE = "round_done"
    HEAL = "heal"
    HEAL_SENT = "heal_sent"
    HEAL_INCIDENT = "heal_incident"
    HEAL_FAILED = "heal_failed"
    DEATH_SEEN = "death_seen"
    DATA = "data"
    EVALUATION = "evaluation"
    NON_FINITE = "non_finite"
    REFUSED = "refused"
    RECORDS_LOST = "records_lost"
    SAVE = "save"
    SAVE_FAILED = "save_failed"
    SAVE_LATE = "save_late"
    BACKSTOP_READ = "backstop_read"
    FINISHED = "finished"
    # Written by who runs the groups.
    JOB_STARTED = "job_started"
    GROUP_LAUNCHED = "group_launched"
    GROUP_EXITED = "group_exited"
    GROUP_EVICTED = "group_evicted"
    GROUP_PAUSED = "group_paused"
    GROUP_RESUMED = "group_resumed"
    KILL = "kill"
    LIGHTHOUSE_DOWN = "lighthouse_down"
    LIGHTHOUSE_UP = "lighthouse_up"


class KillTarget(StrEnum):
    """What a kill hit. Each but LIGHTHOUSE costs one group its life."""

    GROUP = "group"
    RANK = "rank"
    LAUNCHER = "launcher"
    LIGHTHOUSE = "lighthouse"


# Fields beyond `t` and `kind`. Source fields given to the EventLog count; more are always welcome.
# round_done: once per round and group; input_xxh64 over the inputs of all its ranks, or null where
# they are not known. heal, heal_sent: by every rank for itself. healed_from, dead: the number of a
# group or a list of them. group_started may tell `mode`, `rounds` and `rounds_per_pass` (rounds in
# one pass over the data) and `age_s` (seconds since its process started), finished `save_s` (seconds
# that the group waited for its last save), job_started `max_restarts` (restarts inside one launch).
# records_lost: so many lines of its writer are missing from `file`, named as it lies in the folder of
# the run, between `since` and the event's own time.
EVENT_FIELDS: Mapping[EventKind, frozenset[str]] = {
    EventKind.GROUP_STARTED: frozenset({"group", "incarnation"}),
    EventKind.QUORUM: frozenset({"group", "incarnation", "step", "quorum_id", "participants"}),
    EventKind.ROUND_DONE: frozenset({"step", "quorum_id", "group", "incarnation", "round", "input_xxh64"}),
    EventKind.HEAL: frozenset({"group", "incarnation", "healed_from", "step", "bytes", "seconds"}),
    EventKind.HEAL_SENT: frozenset({"group", "incarnation", "step", "bytes", "seconds"}),
    EventKind.HEAL_INCIDENT: frozenset({"group", "incarnation", "donor", "fault", "tensor"}),
    EventKind.HEAL_FAILED: frozenset({"group", "incarnation", "reason"}),
    EventKind.DEATH_SEEN: frozenset({"group", "incarnation", "dead"}),
    EventKind.DATA: frozenset({"group", "incarnation", "samples_per_micro_batch", "dataset_size"}),
    EventKind.EVALUATION: frozenset({"group", "incarnation", "step", "loss"}),
    EventKind.NON_FINITE: frozenset({"group", "incarnation", "rank", "step", "owner", "micro_batch"}),
    EventKind.REFUSED: frozenset({"group", "reason"}),
    EventKind.RECORDS_LOST: frozenset({"file", "lines", "since", "reason"}),
    EventKind.SAVE: frozenset({"group", "incarnation", "step", "save", "bytes", "seconds", "blocked_s"}),
    EventKind.SAVE_FAILED: frozenset({"group", "incarnation", "step", "reason"}),
    EventKind.SAVE_LATE: frozenset({"group", "incarnation", "step", "seconds"}),
    EventKind.BACKSTOP_READ: frozenset(
        {"group", "incarnation", "step", "save", "bytes", "seconds", "digest"}
    ),
    EventKind.FINISHED: frozenset({"group", "incarnation", "step"}),
    EventKind.JOB_STARTED: frozenset({"groups", "ranks", "rounds", "mode", "seed", "steps"}),
    EventKind.GROUP_LAUNCHED: frozenset({"group"}),
    EventKind.GROUP_EXITED: frozenset({"group", "code"}),
    EventKind.GROUP_EVICTED: frozenset({"group", "step"}),
    EventKind.GROUP_PAUSED: frozenset({"group"}),
    EventKind.GROUP_RESUMED: frozenset({"group"}),
    EventKind.KILL: frozenset({"group", "rank", "target", "step"}),
    EventKind.LIGHTHOUSE_DOWN: frozenset(),
    EventKind.LIGHTHOUSE_UP: frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class PhaseSeconds:
    """Seconds that an attempt spent in each phase; `total` covers the whole attempt.

    `save` and `script` lie between the attempt before and this one and are not in the total: training
    stood still for a save, or the training script did something of its own.
    """

    quorum: float = 0.0
    configure: float = 0.0
    heal: float = 0.0
    compute: float = 0.0
    reduce: float = 0.0
    vote: float = 0.0
    commit: float = 0.0
    total: float = 0.0
    save: float = 0.0
    script: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LedgerLine:
    """One attempt of one group at one step.

    `t` is seconds since the epoch, at the end of the attempt. `step` is the number of the step that
    was tried: the updates committed before it, after a heal if there was one. `quorum_id` is None
    where no quorum was had. `participants` are the numbers of the groups in the quorum, in order.
    `rounds` are pairs (round, group that computed it), in order of rounds: on committed lines all
    of them, on others those known. `healed_from` are the donors' groups, None without a heal in
    this attempt. `loss` is the mean over the step's micro-batches, `digest` that of the full state
    after the step; each is None where it was not computed.
    """

    t: float
    group: int
    incarnation: str
    step: int
    quorum_id: int | None
    outcome: Outcome
    reason: Reason = Reason.NONE
    participants: tuple[int, ...] = ()
    rounds: tuple[tuple[int, int], ...] = ()
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    digest: str | None = None
    healed_from: tuple[int, ...] | None = None
    seconds: PhaseSeconds = PhaseSeconds()

    def to_json(self) -> dict[str, Any]:
        """The line as its JSON object, floats that are not finite as null."""
        raw = {field.name: getattr(self, field.name) for field in fields(self)}
        raw["seconds"] = {field.name: getattr(self.seconds, field.name) for field in fields(PhaseSeconds)}
        return {name: _finite(value) for name, value in raw.items()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; unknown keys are ignored, so that formats can grow.

        Raises ValueError, naming the field, where one is missing or ill-typed.
        """
        return cls(
            t=number(raw, "t"),
            group=integer(raw, "group"),
            incarnation=text(raw, "incarnation"),
            step=integer(raw, "step"),
            quorum_id=None if raw.get("quorum_id") is None else integer(raw, "quorum_id"),
            outcome=Outcome(text(raw, "outcome")),
            reason=Reason(text(raw, "reason")),
            participants=integers(raw, "participants"),
            rounds=pairs(raw, "rounds"),
            loss=optional_number(raw, "loss"),
            grad_norm=optional_number(raw, "grad_norm"),
            lr=optional_number(raw, "lr"),
            digest=None if raw.get("digest") is None else text(raw, "digest"),
            healed_from=None if raw.get("healed_from") is None else integers(raw, "healed_from"),
            seconds=_phase_seconds(raw.get("seconds")),
        )


class Ledger:
    """The ledger of one group, kept by its rank 0: one line per attempt, in order.

    A context manager. Owned by the training thread: no other may call it. `append` writes to the
    page cache and does not wait for the disk. `lines` is its file.
    """

    def __init__(self, out: Path, group: int, incarnation: str) -> None:
        """Open `out/ledger/group-GROUP.jsonl` for appending. Raises OSError where that cannot be."""
        self._group = group
        self._incarnation = incarnation
        self.lines = JsonLines(ledger_path(out, group))

    def append(self, line: LedgerLine) -> bool:
        """Write one attempt; False where that cannot be. Raises ValueError for a line of another
        group or incarnation."""
        if (line.group, line.incarnation) != (self._group, self._incarnation):
            raise ValueError(f"a line of group {line.group} does not belong in the ledger of {self._group}")
        return self.lines.append(line.to_json())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self.lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EventLog:
    """The event log of a run, shared by all its processes: lines of different writers never mix.

    A context manager, opened and closed by one owner. `write` may be called from any thread; it
    writes to the page cache and does not wait for the disk. After lines that were lost, the next one
    that can be written is followed by an event `records_lost`.
    """

    def __init__(self, out: Path, *, clock: Callable[[], float] = time.time, **source: Any) -> None:
        """Open `out/events.jsonl`. `source` (group, rank, incarnation) goes into every event.

        Raises OSError where the file cannot be opened.
        """
        self._out = out
        self._clock = clock
        self._source = source
        self._lines = JsonLines(events_path(out), clock=clock)
        self._watched = [self._lines]
        self._closed = False

    def tell_gaps_of(self, lines: JsonLines) -> None:
        """Write down here what is missing there, too."""
        self._watched.append(lines)

    def write(self, kind: EventKind, **values: Any) -> bool:
        """Append one event with the time now; `values` win over source fields. Long texts are cut.

        False where the file cannot be written. Raises ValueError where a field of EVENT_FIELDS is
        missing or the event is too long.
        """
        written = self._append(kind, values)
        if written:
            self._tell_gaps()
        return written

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._tell_gaps()
            self._lines.close()

    def _append(self, kind: EventKind, values: Mapping[str, Any]) -> bool:
        event = {**self._source, **values}
        missing = EVENT_FIELDS[kind] - event.keys()
        if missing:
            raise ValueError(f"event {kind} lacks {', '.join(sorted(missing))}")
        line = {"t": self._clock(), "kind": kind, **{name: _short(value) for name, value in event.items()}}
        return self._lines.append(line, limit_bytes=MAX_EVENT_BYTES)

    def _tell_gaps(self) -> None:
        for lines in self._watched:
            gap = lines.take_gap()
            if gap is None:
                continue
            where = {"file": str(lines.path.relative_to(self._out)), "lines": gap.lines}
            what = {**where, "since": gap.since, "reason": gap.reason}
            if not self._append(EventKind.RECORDS_LOST, what):
                lines.put_back(gap)
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def ledger_path(out: Path, group: int) -> Path:
    """Where the ledger of a group lies in the folder of a run."""
    return out / "ledger" / f"group-{group}.jsonl"


def events_path(out: Path) -> Path:
    """Where the event log lies in the folder of a run."""
    return out / "events.jsonl"


def new_incarnation() -> str:
    """A name for one life of a group: 8 random hexadecimal digits. No secret."""
    return secrets.token_hex(4)


def _finite(value: Any) -> Any:
    """The value as valid JSON: floats that are not finite become None, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(item) for item in value]
    return value


def _short(value: Any) -> Any:
    """The value as valid JSON, a text cut to where its encoding has MAX_EVENT_TEXT bytes."""
    if not isinstance(value, str):
        return _finite(value)
    value = value[:MAX_EVENT_TEXT]
    while len(json.dumps(value)) > MAX_EVENT_TEXT + 2:
        value = value[: len(value) * MAX_EVENT_TEXT // len(json.dumps(value))]
    return value


def _phase_seconds(raw: Any) -> PhaseSeconds:
    if not isinstance(raw, Mapping):
        raise ValueError("seconds is not an object")
    since_then = ("configure", "save", "script")  # older ledgers lack them
    return PhaseSeconds(
        **{
            field.name: number(raw, field.name)
            for field in fields(PhaseSeconds)
            if field.name in raw or field.name not in since_then
        }
    )
