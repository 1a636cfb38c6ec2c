"""Read the evidence of a run back: ledgers and events, typed, with every damaged line named.

A torn last line of a file is the mark of a writer killed at that moment and is passed over. A line
that cannot be read anywhere else is never skipped in silence: it is kept as `Damage`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import Any, TypeVar

from replica.errors import UserError
from replica.ledger import EVENT_FIELDS, EventKind, KillTarget, LedgerLine, events_path

LEDGER_NAME = re.compile(r"group-(\d+)\.jsonl")
LINE_START = b'{"t":'

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A line that could not be read: the file's name inside the run's folder, line from 1, why."""

    file: str
    line: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of the event log. `t` is seconds since the epoch; `values` all fields but t and kind."""

    t: float
    kind: EventKind
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> int | None:
        """The group that the event is about, None where it is about none."""
        return self.integer("group")

    @property
    def incarnation(self) -> str | None:
        """The incarnation that wrote the event, None where none did."""
        value = self.values.get("incarnation")
        return value if isinstance(value, str) else None

    def integer(self, name: str) -> int | None:
        """The field as an integer, None where it is absent or something else."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, name: str) -> float:
        """The field as a number, 0 where it is absent or something else."""
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundDone:
    """A group finished a round. The hash covers what all its ranks were fed; None where untold."""

    step: int
    quorum_id: int
    group: int
    incarnation: str
    round: int
    input_xxh64: str | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the run set out to do; `rounds` and `steps` are None where only the user's script knew.

    `restarts_in_place` tells that one launch may have many lives.
    """

    groups: int
    ranks: int
    rounds: int | None
    mode: str
    steps: int | None
    restarts_in_place: bool


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that a run wrote down: ledgers by group, events and damage, each in the order of its file.

    derived: what `train.evidence.history.remembered` keeps of it.
    """

    out: Path
    ledgers: Mapping[int, tuple[LedgerLine, ...]]
    events: tuple[Event, ...]
    damage: tuple[Damage, ...] = ()
    derived: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def lines(self) -> tuple[LedgerLine, ...]:
        """The lines of all ledgers, group by group, each in the order of its file."""
        return tuple(line for group in sorted(self.ledgers) for line in self.ledgers[group])

    @cached_property
    def rounds_done(self) -> tuple[RoundDone, ...]:
        """All `round_done` events, in the order of the file."""
        return tuple(_round_done(event) for event in self.of(EventKind.ROUND_DONE))

    @cached_property
    def job(self) -> Job | None:
        """The first `job_started` event, None where the groups were not run by a local cluster."""
        return next((_job(event) for event in self.of(EventKind.JOB_STARTED)), None)

    @cached_property
    def deaths(self) -> tuple[Event, ...]:
        """The kills that cost a group its life: of a group, one of its ranks or its launcher."""
        kills = self.of(EventKind.KILL)
        return tuple(kill for kill in kills if kill.values["target"] != KillTarget.LIGHTHOUSE)

    def of(self, *kinds: EventKind) -> tuple[Event, ...]:
        """The events of these kinds, in the order of the file."""
        if len(kinds) == 1:
            return self._by_kind.get(kinds[0], ())
        return tuple(event for event in self.events if event.kind in kinds)

    @cached_property
    def _by_kind(self) -> Mapping[EventKind, tuple[Event, ...]]:
        found: dict[EventKind, list[Event]] = defaultdict(list)
        for event in self.events:
            found[event.kind].append(event)
        return {kind: tuple(events) for kind, events in found.items()}


def read_evidence(out: Path) -> Evidence:
    """Read ledgers and events of the run in folder `out`; a run that is still going may be read.

    Raises UserError where there is no such folder, or no evidence in it.
    """
    if not out.is_dir():
        raise UserError(f"there is no folder {out}; name the --out folder of a run")
    ledger_files = {int(match[1]): path for path in _ledger_files(out) if (match := _ledger_name(path))}
    if not ledger_files and not events_path(out).is_file():
        raise UserError(f"the folder {out} holds neither ledger nor events; name the --out folder of a run")
    damage: list[Damage] = []
    ledgers = {
        group: tuple(_read(path, out, _ledger_reader(group), damage))
        for group, path in sorted(ledger_files.items())
    }
    events = tuple(_read(events_path(out), out, _event, damage))
    return Evidence(out=out, ledgers=ledgers, events=events, damage=tuple(damage))


def _ledger_files(out: Path) -> list[Path]:
    return sorted((out / "ledger").glob("group-*.jsonl"))


def _ledger_name(path: Path) -> re.Match[str] | None:
    return LEDGER_NAME.fullmatch(path.name)


def _read(
    path: Path, out: Path, parse: Callable[[Mapping[str, Any]], Record], damage: list[Damage]
) -> Iterator[Record]:
    """The records of a file in order; what cannot be read is added to `damage`."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    for number, line in enumerate(lines, start=1):
        last = number == len(lines)
        for piece in _pieces(line):
            try:
                record = parse(_object(piece))
            except ValueError as error:
                if not last:
                    damage.append(Damage(file=str(path.relative_to(out)), line=number, why=str(error)))
                continue
            yield record


def _pieces(line: bytes) -> list[bytes]:
    """A line cut where a second record was glued to the torn one before it; none for an empty line."""
    if not line.strip():
        return []
    start = line.rfind(LINE_START)
    return [line[:start], line[start:]] if start > 0 else [line]


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError("not a whole line of JSON") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _ledger_reader(group: int) -> Callable[[Mapping[str, Any]], LedgerLine]:
    def parse(raw: Mapping[str, Any]) -> LedgerLine:
        line = LedgerLine.from_json(raw)
        if line.group != group:
            raise ValueError(f"a line of group {line.group} in the ledger of group {group}")
        return line

    return parse


def _event(raw: Mapping[str, Any]) -> Event:
    kind = EventKind(str(raw.get("kind")))
    missing = {"t", *EVENT_FIELDS[kind]} - raw.keys()
    if missing:
        raise ValueError(f"event {kind} lacks {', '.join(sorted(missing))}")
    # Millions of events share the names of their fields.
    values = {intern(name): value for name, value in raw.items() if name not in ("t", "kind")}
    t = raw["t"]
    if isinstance(t, bool) or not isinstance(t, int | float):
        raise ValueError(f"t of event {kind} is not a number")
    event = Event(t=float(t), kind=kind, values=values)
    if kind is EventKind.ROUND_DONE:
        _round_done(event)
    if kind is EventKind.JOB_STARTED:
        _job(event)
    return event


def _required(event: Event, name: str) -> int:
    value = event.integer(name)
    if value is None:
        raise ValueError(f"{name} of event {event.kind} is not an integer")
    return value


def _round_done(event: Event) -> RoundDone:
    text = event.values["input_xxh64"]
    return RoundDone(
        step=_required(event, "step"),
        quorum_id=_required(event, "quorum_id"),
        group=_required(event, "group"),
        incarnation=str(event.values["incarnation"]),
        round=_required(event, "round"),
        input_xxh64=None if text is None else str(text),
    )


def _job(event: Event) -> Job:
    return Job(
        groups=_required(event, "groups"),
        ranks=_required(event, "ranks"),
        rounds=event.integer("rounds"),
        mode=str(event.values["mode"]),
        steps=event.integer("steps"),
        restarts_in_place=bool(event.integer("max_restarts")),
    )
