"""Writes down what a group did: its ledger by rank 0, events by every rank; and counts it for metrics."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from replica.errors import UserError
from replica.ledger import EventKind, EventLog, Ledger, LedgerLine
from replica.metrics_server import MetricsServer


class Recorder:
    """The evidence of one incarnation of one group, written by one rank of it.

    `event` may be called from any thread, the rest belongs to the training thread. Raises
    UserError when the folder cannot be written at the start; from then on, what cannot be written is
    counted and training goes on. Without a folder nothing is written.
    """

    def __init__(
        self,
        *,
        out: Path | None,
        group: int,
        rank: int,
        incarnation: str,
        metrics: MetricsServer | None = None,
    ) -> None:
        """metrics: count all that this rank writes down, and are closed with it."""
        self._files = ExitStack()
        self._metrics = None if metrics is None else metrics.counts
        # Where the metrics are served, None for nowhere.
        self.metrics_url = None if metrics is None else metrics.url
        if metrics is not None:
            self._files.callback(metrics.close)
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
                self._events.tell_gaps_of(self._ledger.lines)
        except OSError as error:
            self._files.close()
            raise UserError(
                f"cannot write below {out} ({error.strerror}): choose another folder with --out"
            ) from None

    def event(self, kind: EventKind, **values: Any) -> None:
        """Write an event of this rank."""
        if self._metrics is not None:
            self._metrics.happened(kind, values)
        if self._events is not None:
            self._count_lost(self._events.write(kind, **values))

    def group_event(self, kind: EventKind, **values: Any) -> None:
        """Write an event of the whole group, once: by rank 0."""
        if self._rank == 0:
            self.event(kind, **values)

    def attempt(self, **values: Any) -> None:
        """Write the ledger line of an attempt, on rank 0."""
        if self._metrics is not None:
            self._metrics.attempted(values)
        if self._ledger is not None:
            line = LedgerLine(t=time.time(), group=self.group, incarnation=self.incarnation, **values)
            self._count_lost(self._ledger.append(line))

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _count_lost(self, written: bool) -> None:
        if not written and self._metrics is not None:
            self._metrics.lost()
