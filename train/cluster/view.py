"""Live progress of a local cluster: a table on a terminal, a line every few seconds elsewhere.

What is shown is a pure function of a snapshot. The two views only decide when to show it.
"""

from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from train.cluster.snapshot import GroupSnapshot, GroupState, Snapshot

LINE_EVERY_S = 5.0
_REDRAWS_PER_S = 4

_STYLES = {
    GroupState.STARTING: "cyan",
    GroupState.TRAINING: "green",
    GroupState.PAUSED: "magenta",
    GroupState.DEAD: "bold red",
    GroupState.RESTARTING: "yellow",
    GroupState.HEALING: "yellow",
    GroupState.FINISHED: "dim green",
}


class View(Protocol):
    """Shows snapshots; a context manager that leaves the terminal as it was."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def update(self, snapshot: Snapshot, now_s: float) -> None:
        """Called often, from one thread; now_s is a monotonic clock."""


def open_view(stream: TextIO) -> View:
    """The view that suits the stream: live on a terminal, plain lines elsewhere."""
    console = Console(file=stream)
    return LiveView(console) if console.is_terminal else LineView(stream)


def step_text(snapshot: Snapshot) -> str:
    """Such as `step 84/200`."""
    return f"step {snapshot.step}" + (f"/{snapshot.steps}" if snapshot.steps is not None else "")


def line(snapshot: Snapshot) -> str:
    """Such as `step 84/200  loss 2.913  0.62 s/step  groups 0 training 84 | 2 dead 1.2 s`."""
    parts = [step_text(snapshot)]
    if snapshot.loss is not None:
        parts.append(f"loss {snapshot.loss:.3f}")
    if snapshot.step_s is not None:
        parts.append(f"{snapshot.step_s:.2f} s/step")
    if snapshot.kills:
        parts.append(f"kills {snapshot.kills}")
    if not snapshot.lighthouse_up:
        parts.append("Lighthouse down")
    parts.append("groups " + " | ".join(_group_text(group) for group in snapshot.groups))
    return "  ".join(parts)


def table(snapshot: Snapshot) -> RenderableType:
    """The same for a terminal: a headline, a bar, and one row per group."""
    rows = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("group", "state", "step", "last seen"):
        rows.add_column(heading, justify="left" if heading == "state" else "right")
    for group in snapshot.groups:
        state = Text(group.state.value, style=_STYLES[group.state])
        rows.add_row(str(group.group), state, str(group.step), _age_text(group))
    bar = ProgressBar(total=float(snapshot.steps or 1), completed=float(snapshot.step), width=60)
    whole = Table.grid()
    for part in (Text(_headline(snapshot), style="bold"), bar, rows):
        whole.add_row(part)
    return whole


class LineView:
    """Prints a line at most every LINE_EVERY_S seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._due_s: float | None = None

    def update(self, snapshot: Snapshot, now_s: float) -> None:
        """Prints the snapshot if it is time again."""
        if self._due_s is not None and now_s < self._due_s:
            return
        self._due_s = now_s + LINE_EVERY_S
        print(line(snapshot), file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class LiveView:
    """Redraws a table in place, a few times a second."""

    def __init__(self, console: Console) -> None:
        # No thread of rich's own: the caller's loop is the only one that draws.
        self._live = Live(console=console, auto_refresh=False)
        self._due_s: float | None = None

    def update(self, snapshot: Snapshot, now_s: float) -> None:
        """Draws the snapshot if it is time again."""
        if self._due_s is not None and now_s < self._due_s:
            return
        self._due_s = now_s + 1 / _REDRAWS_PER_S
        self._live.update(table(snapshot), refresh=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)


def _headline(snapshot: Snapshot) -> str:
    loss = "-" if snapshot.loss is None else f"{snapshot.loss:.3f}"
    pace = "-" if not snapshot.step_s else f"{1 / snapshot.step_s:.2f}"
    parts = [step_text(snapshot), f"loss {loss}", f"{pace} steps/s", f"kills {snapshot.kills}"]
    if not snapshot.lighthouse_up:
        parts.append("Lighthouse down")
    return "   ".join(parts)


def _group_text(group: GroupSnapshot) -> str:
    text = f"{group.group} {group.state.value}"
    if group.state is GroupState.TRAINING:
        return f"{text} {group.step}"
    if group.state in (GroupState.DEAD, GroupState.PAUSED) and group.last_seen_s is not None:
        return f"{text} {group.last_seen_s:.1f} s"
    return text


def _age_text(group: GroupSnapshot) -> str:
    if group.last_seen_s is None or group.state is GroupState.FINISHED:
        return "-"
    return f"{group.last_seen_s:.1f} s ago"
