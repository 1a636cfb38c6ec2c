"""Writes down what a group did: its ledger by rank 0, events by every rank; nothing without a folder."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from replica.errors import UserError
from replica.ledger import EventKind, EventLog, Ledger, LedgerLine, PhaseSeconds


class Recorder:
    """The evidence of one incarnation of one group, written by one rank of it.

    `event` may be called from any thread, the rest belongs to the training thread. Raises
    UserError when the folder cannot be written.
    """

    def __init__(self, *, out: Path | None, group: int, rank: int, incarnation: str) -> None:
        self._files = ExitStack()
        self._ledger: Ledger | None = None
        self._events: EventLog | None = None
        self._rank = rank
        self.group = group
        self.incarnation = incarnation
        if out is None:
            return
        try:
            source: dict[str, Any] = {"group": group, "rank": rank, "incarnation": incarnation}
            self._events = self._files.enter_context(EventLog(out, **source))
            if rank == 0:
                self._ledger = self._files.enter_context(Ledger(out, group, incarnation))
        except OSError as error:
            self._files.close()
            raise UserError(
                f"cannot write below {out} ({error.strerror}): choose another folder with --out"
            ) from None

    def event(self, kind: EventKind, **values: Any) -> None:
        """Write an event of this rank."""
        if self._events is not None:
            self._events.write(kind, **values)

    def group_event(self, kind: EventKind, **values: Any) -> None:
        """Write an event of the whole group, once: by rank 0."""
        if self._rank == 0:
            self.event(kind, **values)

    def attempt(self, **values: Any) -> None:
        """Write the ledger line of an attempt, on rank 0."""
        if self._ledger is not None:
            self._ledger.append(
                LedgerLine(t=time.time(), group=self.group, incarnation=self.incarnation, **values)
            )

    def close(self) -> None:
        """Close the files."""
        self._files.close()


@dataclass(kw_only=True)
class Stopwatch:
    """Seconds per phase of one attempt, from its making on."""

    started_s: float
    quorum: float = 0.0
    heal: float = 0.0
    compute: float = 0.0
    reduce: float = 0.0
    vote: float = 0.0
    commit: float = 0.0

    @classmethod
    def start(cls) -> "Stopwatch":
        """A watch that runs from now."""
        return cls(started_s=time.perf_counter())

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the duration of a block to `phase`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, phase, getattr(self, phase) + time.perf_counter() - begun)

    def seconds(self) -> PhaseSeconds:
        """What was measured so far; the total is up to now."""
        phases = {
            each.name: getattr(self, each.name) for each in fields(PhaseSeconds) if each.name != "total"
        }
        return PhaseSeconds(**phases, total=time.perf_counter() - self.started_s)
