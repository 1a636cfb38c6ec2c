"""The report of a run as one self-contained page: loss curve, a timeline per group, where time went."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from replica.goodput import Cause
from replica.ledger import EventKind, KillTarget, Outcome
from train.evidence.eras import Eras, find_eras
from train.evidence.figures import last_commits
from train.evidence.files import Event, Evidence
from train.evidence.goodput import shares_by_cause
from train.evidence.history import is_death, lives

WIDTH, LEFT, RIGHT = 960, 70, 20
LOSS_HEIGHT, ROW_HEIGHT, TOP = 260, 28, 14
MAX_POINTS = 2000

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222 }
pre { background: #f4f4f2; padding: 1em; overflow-x: auto }
svg { width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #444 }
.axis { stroke: #999; fill: none } .loss { stroke: #1f5fa8; stroke-width: 1.6; fill: none }
.kill { stroke: #c2372e; stroke-dasharray: 3 2 } .alive { fill: #cfe3f5 } .heal { fill: #e9a93a }
.committed { fill: #1f5fa8 } .failed { fill: #c2372e }
.save { stroke: #2e8b57; stroke-width: 1.6 } .save-failed { stroke: #c2372e; stroke-width: 1.6 }
.disaster { stroke: #111; stroke-width: 2.4 }
.swatch { display: inline-block; width: 1em; height: .8em }
"""
SLICES = {
    Cause.PRODUCTIVE: "#1f5fa8", Cause.REDUCE: "#5fa88f", Cause.QUORUM: "#7a5fa8", Cause.SAVE: "#2e8b57",
    Cause.ENDED_ATTEMPT: "#c2372e", Cause.DETECTION: "#7d1f1a", Cause.RECONFIGURING: "#b58bd6",
    Cause.HEALING: "#e9a93a", Cause.RESTARTING: "#d98880", Cause.SPARE: "#bcd3e6",
    Cause.NOT_PROVISIONED: "#dddddd", Cause.RESTORED_OVER: "#111111",
}  # fmt: skip


def render_html(evidence: Evidence, report: Mapping[str, Any], summary: str) -> str:
    """The page: `summary` is the short report for people, `report` what `build_report` made of it.

    It needs nothing from outside and runs no script.
    """
    axis = _TimeAxis(evidence)
    eras = find_eras(evidence)
    parts = [
        "<h1>What this run amounted to</h1>",
        f"<pre>{escape(summary)}</pre>",
        "<h2>Loss</h2><p>Red lines: kills. Black lines: all groups had died, and a save was read.</p>",
        _loss_curve(evidence, eras, axis),
        "<h2>Timeline of each replica group</h2>",
        "<p>Pale: alive. Blue: committed attempts. Amber: heals. Red: failed attempts; red lines: kills. "
        "Green ticks: saves made; red ticks: saves that failed. Black lines: saves read.</p>",
        _timelines(evidence, axis),
        "<h2>Where the time went</h2>",
        _time_bar(report),
    ]
    head = f'<meta charset="utf-8"><title>Headway report</title><style>{STYLE}</style>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


class _TimeAxis:
    """Maps seconds since the epoch to places across the page."""

    def __init__(self, evidence: Evidence) -> None:
        times = [event.t for event in evidence.events] + [line.t for line in evidence.lines]
        self.start = min(times, default=0.0)
        self.end = max(times, default=1.0)
        self.span_s = max(self.end - self.start, 1e-9)

    def x(self, t: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (t - self.start) / self.span_s

    def labels(self, y: float) -> str:
        """The seconds since the start, at five places."""
        marks = [self.start + self.span_s * part / 4 for part in range(5)]
        return "".join(_text(self.x(t), y, f"{t - self.start:.0f} s", "middle") for t in marks)


def _loss_curve(evidence: Evidence, eras: Eras, axis: _TimeAxis) -> str:
    points = [(line.t, line.loss) for line in last_commits(evidence, eras) if line.loss is not None]
    if not points:
        return "<p>No step was committed.</p>"
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    scale = (LOSS_HEIGHT - 2 * TOP) / max(high - low, 1e-9)
    thinned = points[:: len(points) // MAX_POINTS + 1]
    path = " ".join(f"{axis.x(t):.1f},{TOP + (high - loss) * scale:.1f}" for t, loss in thinned)
    body = [
        f'<polyline class="axis" points="{LEFT},{TOP} {LEFT},{LOSS_HEIGHT} {WIDTH - RIGHT},{LOSS_HEIGHT}"/>',
        _text(LEFT - 6, TOP + 4, f"{high:.2f}", "end"),
        _text(LEFT - 6, LOSS_HEIGHT - TOP + 4, f"{low:.2f}", "end"),
        *_kill_marks(evidence, axis, TOP, LOSS_HEIGHT),
        *(_read_mark(axis, era.reads[0], TOP, LOSS_HEIGHT) for era in eras.disasters),
        f'<polyline class="loss" points="{path}"/>',
        axis.labels(LOSS_HEIGHT + 16),
    ]
    return _svg(body, LOSS_HEIGHT + 24)


def _timelines(evidence: Evidence, axis: _TimeAxis) -> str:
    groups = sorted({*evidence.ledgers, *range(evidence.job.groups if evidence.job else 0)})
    body: list[str] = []
    for row, group in enumerate(groups):
        y = TOP + row * ROW_HEIGHT
        body += [_text(LEFT - 6, y + 14, f"group {group}", "end"), *_row(evidence, axis, group, y)]
        body += _kill_marks(evidence, axis, y - 3, y + ROW_HEIGHT - 7, group)
        body += _save_marks(evidence, axis, y, group)
    height = TOP + len(groups) * ROW_HEIGHT
    return _svg([*body, axis.labels(height + 10)], height + 18)


def _row(evidence: Evidence, axis: _TimeAxis, group: int, y: float) -> list[str]:
    alive = [_bar(axis, start, end, y, 18, "alive") for start, end in _alive(evidence, group, axis.end)]
    heals = [
        _bar(axis, event.t - event.number("seconds"), event.t, y, 18, "heal")
        for event in evidence.of(EventKind.HEAL)
        if event.group == group
    ]
    attempts = [
        _bar(axis, line.t - line.seconds.total, line.t, y + 6, 6, _attempt_class(line.outcome))
        for line in evidence.ledgers.get(group, ())
    ]
    return [*alive, *heals, *attempts]


def _attempt_class(outcome: Outcome) -> str:
    return "committed" if outcome is Outcome.COMMITTED else "failed"


def _alive(evidence: Evidence, group: int, end: float) -> list[tuple[float, float]]:
    """When the lives of a group began and ended, in seconds since the epoch."""
    starts = [index for index, (number, _) in lives(evidence) if number == group]
    spans = []
    for index in starts:
        events = evidence.events[index:]
        if events:
            deaths = (event.t for event in events if event.group == group and is_death(event))
            spans.append((events[0].t, next(deaths, end)))
    return spans


def _kill_marks(
    evidence: Evidence, axis: _TimeAxis, top: float, bottom: float, group: int | None = None
) -> Iterable[str]:
    for kill in evidence.of(EventKind.KILL):
        target = str(kill.values["target"])
        if group is not None and kill.group != group:
            continue
        who = "the Lighthouse" if target == KillTarget.LIGHTHOUSE else f"{target} of group {kill.group}"
        yield _mark(axis, kill.t, top, bottom, "kill", f"kill of {who}")


def _save_marks(evidence: Evidence, axis: _TimeAxis, y: float, group: int) -> Iterable[str]:
    """The saves that a group made, failed to make, and read."""
    for event in evidence.of(EventKind.SAVE, EventKind.SAVE_FAILED, EventKind.BACKSTOP_READ):
        if event.group != group:
            continue
        match event.kind:
            case EventKind.BACKSTOP_READ:
                yield _read_mark(axis, event, y - 3, y + ROW_HEIGHT - 7)
            case EventKind.SAVE:
                yield _mark(axis, event.t, y - 3, y + 4, "save", f"save of step {event.integer('step')}")
            case _:
                what = f"save of step {event.integer('step')} failed: {event.values['reason']}"
                yield _mark(axis, event.t, y - 3, y + 4, "save-failed", what)


def _read_mark(axis: _TimeAxis, read: Event, top: float, bottom: float) -> str:
    what = f"step {read.integer('step')} read from a save"
    return _mark(axis, read.t, top, bottom, "disaster", what)


def _mark(axis: _TimeAxis, t: float, top: float, bottom: float, css: str, what: str) -> str:
    """A line across, which tells what it is and when it was."""
    x, told = f"{axis.x(t):.1f}", escape(f"{what} at {t - axis.start:.1f} s")
    return (
        f'<line class="{css}" x1="{x}" x2="{x}" y1="{top:.0f}" y2="{bottom:.0f}"><title>{told}</title></line>'
    )


def _time_bar(report: Mapping[str, Any]) -> str:
    """One bar of all groups' seconds, cut by what they went into, and its legend."""
    shares = {Cause(name): share for name, share in shares_by_cause(report["goodput"]).items()}
    body, x = [], float(LEFT)
    for name, share in shares.items():
        width = (WIDTH - LEFT - RIGHT) * share
        body.append(f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="30" fill="{SLICES[name]}"/>')
        x += width
    legend = "".join(
        f'<li><span class="swatch" style="background:{SLICES[name]}"></span> {_words(name)} {share:.1%}</li>'
        for name, share in shares.items()
    )
    return f"{_svg(body, TOP + 40)}<ul>{legend}</ul>"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _bar(axis: _TimeAxis, start: float, end: float, y: float, height: float, css: str) -> str:
    left, right = axis.x(max(start, axis.start)), axis.x(end)
    width = max(right - left, 0.5)
    return f'<rect class="{css}" x="{left:.1f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(body: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(body)}</svg>'
