"""The charts of a report as HTML and SVG that stretch to the width of any screen; no script. Pure.

Shapes are drawn in a plane PLANE units wide that is stretched; text stands beside it and is not.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from replica.goodput import Cause
from train.evidence.timeline import Interval

PLANE = 1000
CURVE_HEIGHT, ROW_HEIGHT = 240, 22
MAX_POINTS = 2000
TICKS = 5

COLOURS = {
    Cause.PRODUCTIVE: "#1f5fa8", Cause.REDUCE: "#5b9bd5", Cause.QUORUM: "#8e7cc3", Cause.SAVE: "#2e8b57",
    Cause.ENDED_ATTEMPT: "#c2372e", Cause.DETECTION: "#7d1f1a", Cause.RECONFIGURING: "#c9a6e0",
    Cause.HEALING: "#e9a93a", Cause.RESTARTING: "#d98880", Cause.SPARE: "#a9c7de",
    Cause.NOT_PROVISIONED: "#d5d5d0", Cause.RESTORED_OVER: "#333333",
}  # fmt: skip
# Seldom and short: where one of these falls into a column of a timeline, the column shows it.
NOTABLE = frozenset({Cause.ENDED_ATTEMPT, Cause.DETECTION, Cause.HEALING, Cause.RESTORED_OVER})

STYLE = """
svg { display: block; width: 100%; background: #8881 }
svg line, svg polyline { vector-effect: non-scaling-stroke; fill: none }
.curve { stroke-width: 1.8 } .kill { stroke: #d6281d; stroke-width: 1.5; stroke-dasharray: 3 2 }
.save { stroke: #2e8b57; stroke-width: 2 } .save-failed { stroke: #ff7a00; stroke-width: 2 }
.disaster { stroke: #888; stroke-width: 3 }
.chart { display: grid; grid-template-columns: 3.4rem 1fr; gap: .2rem .4rem; font-size: .8rem }
.scale { display: flex; flex-direction: column; justify-content: space-between; text-align: right }
.ticks { grid-column: 2; display: flex; justify-content: space-between }
.row { text-align: right; align-self: center } .swatch { display: inline-block; width: 1em; height: .8em }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: .3rem 0; font-size: .85rem }
"""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The horizontal axis from `low` to `high`; `label` tells what stands at a place."""

    low: float
    high: float
    label: Callable[[float], str]

    def x(self, value: float) -> float:
        """Where the value lies in the plane; what is outside lies at the edge."""
        share = (value - self.low) / max(self.high - self.low, 1e-9)
        return PLANE * min(1.0, max(0.0, share))

    def ticks(self) -> str:
        """The row of labels below a chart."""
        places = [self.low + (self.high - self.low) * index / (TICKS - 1) for index in range(TICKS)]
        return (
            f'<div class="ticks">{"".join(f"<span>{escape(self.label(at))}</span>" for at in places)}</div>'
        )


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve: points (x, y) in the order of x."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a place of the axis; css: its class in STYLE."""

    at: float
    css: str
    what: str


def seconds_label(seconds: float, end_s: float | None = None) -> str:
    """A time as `55 s`, `3:41 min` or `2:05 h`: in the unit that suits end_s, without it the time itself."""
    end_s = seconds if end_s is None else end_s
    if end_s < 120:
        return f"{seconds:.{0 if end_s >= 20 else 1}f} s"
    unit, per_s = ("min", 1) if end_s < 7200 else ("h", 60)
    whole, rest = divmod(round(seconds / per_s), 60)
    return f"{whole}:{rest:02} {unit}"


def time_axis(end_s: float) -> Axis:
    """An axis of seconds from 0 on, labelled in one unit."""
    return Axis(low=0.0, high=max(end_s, 1e-9), label=lambda seconds: seconds_label(seconds, end_s))


def curves(series: Sequence[Series], axis: Axis, marks: Iterable[Mark] = ()) -> str:
    """Curves over one axis, with a line down for each mark; a sentence where there is no point."""
    values = [y for one in series for _, y in one.points]
    if not values:
        return "<p>No step was committed.</p>"
    low, high = min(values), max(values)
    body = [_mark(axis, mark, CURVE_HEIGHT) for mark in marks]
    body += [_polyline(one, axis, low, high) for one in series]
    scale = f'<div class="scale"><span>{high:.3g}</span><span>{low:.3g}</span></div>'
    return f'<div class="chart">{scale}{_plane(body, CURVE_HEIGHT)}{axis.ticks()}</div>'


def timelines(
    groups: Sequence[tuple[int, Sequence[Interval], Sequence[Mark]]], axis: Axis, begin_t: float
) -> str:
    """A row for each group: what it did, in the colours of the causes, and its marks.

    The axis is in seconds since begin_t.
    """
    rows = []
    for group, intervals, marks in groups:
        body = [_stretch(axis, *each) for each in condensed(intervals, axis, begin_t)]
        body += [_mark(axis, mark, ROW_HEIGHT) for mark in marks]
        rows.append(f'<div class="row">group {group}</div>{_plane(body, ROW_HEIGHT)}')
    return f'<div class="chart">{"".join(rows)}{axis.ticks()}</div>'


def condensed(intervals: Iterable[Interval], axis: Axis, begin_t: float) -> list[tuple[Cause, float, float]]:
    """What a timeline shows: (cause, from, to) in seconds since begin_t, at most one for each of PLANE
    columns. A column shows what took most of it, or a NOTABLE cause, however short.
    """
    width_s = max(axis.high - axis.low, 1e-9) / PLANE
    seconds: dict[int, dict[Cause, float]] = defaultdict(lambda: defaultdict(float))
    for each in intervals:
        begin_s, end_s = each.begin_t - begin_t - axis.low, each.end_t - begin_t - axis.low
        for column in range(max(0, int(begin_s / width_s)), min(PLANE, int(end_s / width_s) + 1)):
            inside_s = min(end_s, (column + 1) * width_s) - max(begin_s, column * width_s)
            if inside_s > 0:
                seconds[column][each.cause] += inside_s
    shown = [(column, _shown(causes)) for column, causes in sorted(seconds.items())]
    # Columns side by side with one cause are one stretch.
    runs = groupby(enumerate(shown), key=lambda one: (one[1][1], one[1][0] - one[0]))
    found = []
    for (cause, _), run in runs:
        columns = [column for _, (column, _) in run]
        found.append((cause, axis.low + columns[0] * width_s, axis.low + (columns[-1] + 1) * width_s))
    return found


def _shown(causes: dict[Cause, float]) -> Cause:
    notable = {cause: seconds for cause, seconds in causes.items() if cause in NOTABLE}
    return max(notable or causes, key=lambda cause: causes[cause])


def stacked(shares: Sequence[tuple[Cause, float]]) -> str:
    """One bar, cut by shares that add up to 1."""
    body, x = [], 0.0
    for cause, share in shares:
        body.append(_rect(x, PLANE * share, ROW_HEIGHT, cause, f"{words(cause)} {share:.1%}"))
        x += PLANE * share
    return _plane(body, ROW_HEIGHT)


def swatch(colour: str) -> str:
    """A small patch of colour, for a legend."""
    return f'<span class="swatch" style="background:{colour}"></span>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """What the colours mean: pairs (colour, name)."""
    shown = "".join(f"<span>{swatch(colour)} {escape(name)}</span>" for colour, name in entries)
    return f'<div class="legend">{shown}</div>'


def words(name: str) -> str:
    """The name of an enum's member for people."""
    return name.replace("_", " ")


def _polyline(series: Series, axis: Axis, low: float, high: float) -> str:
    stride = len(series.points) // MAX_POINTS + 1
    thinned = [*series.points[::stride], *series.points[-1:]]
    scale = (CURVE_HEIGHT - 8) / max(high - low, 1e-9)
    points = " ".join(f"{axis.x(x):.1f},{4 + (high - y) * scale:.1f}" for x, y in thinned)
    return f'<polyline class="curve" stroke="{series.colour}" points="{points}"/>'


def _stretch(axis: Axis, cause: Cause, begin: float, end: float) -> str:
    x = axis.x(begin)
    told = f"{words(cause)} from {begin:.1f} s to {end:.1f} s"
    return _rect(x, axis.x(end) - x, ROW_HEIGHT, cause, told)


def _rect(x: float, width: float, height: int, cause: Cause, told: str) -> str:
    place = f'x="{x:.1f}" y="0" width="{width:.1f}" height="{height}"'
    return f'<rect class="{cause}" {place} fill="{COLOURS[cause]}"><title>{escape(told)}</title></rect>'


def _mark(axis: Axis, mark: Mark, height: int) -> str:
    """A line from top to bottom, which tells what it is and when it was."""
    x, told = f"{axis.x(mark.at):.1f}", escape(f"{mark.what} at {mark.at:.1f} s")
    return f'<line class="{mark.css}" x1="{x}" x2="{x}" y1="0" y2="{height}"><title>{told}</title></line>'


def _plane(body: Sequence[str], height: int) -> str:
    return (
        f'<svg viewBox="0 0 {PLANE} {height}" preserveAspectRatio="none" style="height:{height}px" '
        f'role="img">{"".join(body)}</svg>'
    )
