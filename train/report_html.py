"""The report of a run as one self-contained page: loss curve, a timeline per group, where time went."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from replica.ledger import EventKind, KillTarget, Outcome
from train.evidence.figures import last_commits
from train.evidence.files import Evidence
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
.swatch { display: inline-block; width: 1em; height: .8em }
"""
SLICES = {
    "productive": "#1f5fa8", "quorum": "#7a5fa8", "heal": "#e9a93a", "vote": "#5fa88f", "other": "#9a9a9a",
    "discarded": "#c2372e", "retried": "#d98880", "absent": "#dddddd",
}  # fmt: skip


def render_html(evidence: Evidence, report: Mapping[str, Any], summary: str) -> str:
    """The page: `summary` is the short report for people, `report` what `build_report` made of it.

    It needs nothing from outside and runs no script.
    """
    axis = _TimeAxis(evidence)
    parts = [
        "<h1>What this run amounted to</h1>",
        f"<pre>{escape(summary)}</pre>",
        "<h2>Loss</h2><p>Red lines: kills.</p>",
        _loss_curve(evidence, axis),
        "<h2>Timeline of each replica group</h2>",
        "<p>Pale: alive. Blue: committed attempts. Amber: heals. Red: failed attempts; red lines: kills.</p>",
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


def _loss_curve(evidence: Evidence, axis: _TimeAxis) -> str:
    points = [(line.t, line.loss) for line in last_commits(evidence) if line.loss is not None]
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
        what = f"kill of {who} at {kill.t - axis.start:.1f} s"
        x = f"{axis.x(kill.t):.1f}"
        yield (
            f'<line class="kill" x1="{x}" x2="{x}" y1="{top:.0f}" y2="{bottom:.0f}">'
            f"<title>{escape(what)}</title></line>"
        )


def _time_bar(report: Mapping[str, Any]) -> str:
    """One bar of all groups' seconds, cut by what they went into, and its legend."""
    goodput = report["goodput"]
    lost: dict[str, float] = goodput["lost_s_by_cause"]
    ratio = goodput["ratio"] or 0.0
    shares = {"productive": ratio, **_shares(lost, 1.0 - ratio)}
    body, x = [], float(LEFT)
    for name, share in shares.items():
        width = (WIDTH - LEFT - RIGHT) * share
        body.append(f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="30" fill="{SLICES[name]}"/>')
        x += width
    legend = "".join(
        f'<li><span class="swatch" style="background:{SLICES[name]}"></span> {name} {share:.1%}</li>'
        for name, share in shares.items()
    )
    return f"{_svg(body, TOP + 40)}<ul>{legend}</ul>"


def _shares(lost: Mapping[str, float], whole: float) -> dict[str, float]:
    total = sum(lost.values())
    return {name: whole * seconds / total for name, seconds in lost.items()} if total > 0 else {}


def _bar(axis: _TimeAxis, start: float, end: float, y: float, height: float, css: str) -> str:
    left, right = axis.x(max(start, axis.start)), axis.x(end)
    width = max(right - left, 0.5)
    return f'<rect class="{css}" x="{left:.1f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(body: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(body)}</svg>'
