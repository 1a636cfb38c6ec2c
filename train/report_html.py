"""The report of a run as one self-contained page: what happened, when, to whom, and what it cost."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from replica.goodput import Cause
from replica.ledger import EventKind, KillTarget
from train import report_charts
from train.evidence.blows import UNKNOWN_TARGET, Blow, find_blows
from train.evidence.eras import Eras, find_eras
from train.evidence.figures import last_commits
from train.evidence.files import Event, Evidence
from train.evidence.goodput import shares_by_cause
from train.evidence.timeline import Timeline, find_timeline
from train.report_charts import COLOURS, Axis, Mark, Series, seconds_label, time_axis, words

MAX_ROWS = 200
S = "\u00a0s"  # a line does not break before the unit
LOSS_COLOUR = "#3b82c4"

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 1.5rem auto; padding: 0 1rem }
body { color: #222; background: #fff; overflow-wrap: anywhere } h1 { font-size: 1.4rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .4rem } p { margin: .3rem 0 } .wide { overflow-x: auto }
pre { background: #8881; padding: 1em; overflow-x: auto; font-size: .85rem }
.kept { color: #1a7f37 } .broken { color: #b3261e }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .6rem }
.tiles div { background: #8881; padding: .5rem .7rem } .tiles b { display: block; font-size: 1.25rem }
table { border-collapse: collapse; width: 100%; font-size: .9rem; overflow-wrap: normal }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; vertical-align: top }
th { border-bottom: 1px solid #8888 } td + td, th + th { padding-left: .2rem }
@media (max-width: 40rem) {
  body { margin: .6rem auto } table { font-size: .75rem } th, td { padding-right: .3rem }
}
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e3e3e3 } .kept { color: #57c96f } .broken { color: #ff8a80 }
}
"""


def render_html(evidence: Evidence, report: Mapping[str, Any], summary: str) -> str:
    """The page: `summary` is the short report for people, `report` what `build_report` made of it.

    It needs nothing from outside and runs no script.
    """
    eras = find_eras(evidence)
    timeline = find_timeline(evidence)
    axis = time_axis(timeline.end_t - timeline.begin_t)
    return page(
        f"Headway: {evidence.out.name}",
        [
            _verdict(report),
            _tiles(report),
            f"<details><summary>All figures</summary><pre>{escape(summary)}</pre></details>",
            _loss(evidence, eras, timeline, axis),
            _timelines(evidence, timeline, axis),
            _where_time_went(report),
            _kills(report),
            _saves(evidence, report, timeline),
            _last_signs(report),
        ],
    )


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document around its parts, with the style of all reports."""
    head = (
        '<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{STYLE}{report_charts.STYLE}</style>"
    )
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n'
        f"<h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, which are escaped here; of more than MAX_ROWS rows the last ones."""
    all_rows = list(rows)
    shown = "".join(_tr(row, "td") for row in all_rows[-MAX_ROWS:])
    left_out = len(all_rows) - MAX_ROWS
    note = f"<p>{left_out} earlier rows are left out here.</p>" if left_out > 0 else ""
    return f'<div class="wide"><table>{_tr(heads, "th")}{shown}</table>{note}</div>'


def _tr(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _verdict(report: Mapping[str, Any]) -> str:
    violations = report["violations"]
    gaps = "".join(f"<p>Not judged: {escape(sentence)}.</p>" for sentence in report["not_judged"])
    if not violations:
        return f'<p class="kept">No broken promise{" in what can be judged" if gaps else ""}.</p>{gaps}'
    said = "".join(f"<li>{escape(one['kind'])}: {escape(one['text'])}</li>" for one in violations[:20])
    return f'<p class="broken">BROKEN PROMISES: {len(violations)}</p><ul class="broken">{said}</ul>{gaps}'


def _tiles(report: Mapping[str, Any]) -> str:
    ratio = report["goodput"]["ratio"]
    figures = (
        ("steps committed", str(report["steps_committed"])),
        ("wall time", seconds_label(report["wall_s"])),
        ("kills", str(report["kills"])),
        ("deaths seen", str(report["deaths"])),
        ("goodput", "unknown" if ratio is None else f"{ratio:.1%}"),
        ("final loss", _number(report["final_loss"], "", 3)),
        ("steps discarded", str(report["steps_discarded"])),
        ("steps replayed", str(report["steps_replayed"])),
        ("survivors stalled, longest", _number(report["survivor_stall_s"]["max"], S, 2)),
        ("killed group back in, median", _number(report["rejoin_s"]["p50"], S, 1)),
    )
    return (
        f'<div class="tiles">{"".join(f"<div>{name}<b>{value}</b></div>" for name, value in figures)}</div>'
    )


def _number(value: float | None, unit: str, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def _loss(evidence: Evidence, eras: Eras, timeline: Timeline, axis: Axis) -> str:
    series = Series(name="loss", colour=LOSS_COLOUR, points=loss_by_time(evidence, eras, timeline.begin_t))
    marks = [_blow_mark(blow, timeline) for blow in find_blows(evidence)]
    marks += [_read_mark(era.reads[0], timeline) for era in eras.disasters]
    note = "<p>Dashed red lines: kills. Thick grey lines: all groups had died, and a save was read.</p>"
    return f"<h2>Loss</h2>{note}{report_charts.curves([series], axis, marks)}"


def loss_by_time(evidence: Evidence, eras: Eras, begin_t: float) -> list[tuple[float, float]]:
    """(seconds since begin_t, loss) of each step that counts in the end."""
    lines = last_commits(evidence, eras)
    return sorted((line.t - begin_t, line.loss) for line in lines if line.loss is not None)


def _timelines(evidence: Evidence, timeline: Timeline, axis: Axis) -> str:
    rows = [
        (group, intervals, _marks(evidence, timeline, group)) for group, intervals in timeline.groups.items()
    ]
    present = {each.cause for each in timeline.intervals}
    note = (
        "<p>Dashed red: kills and deaths. Green: saves; orange: saves that failed. "
        "Thick grey: saves read.</p>"
    )
    legend = report_charts.legend((COLOURS[cause], words(cause)) for cause in Cause if cause in present)
    chart = report_charts.timelines(rows, axis, timeline.begin_t)
    return f"<h2>What each group did</h2>{legend}{chart}{note}"


def _marks(evidence: Evidence, timeline: Timeline, group: int) -> list[Mark]:
    """The kills of a group, and the saves that it made, failed to make, and read."""
    own = [event for event in evidence.events if event.group == group]
    found = [_blow_mark(blow, timeline) for blow in find_blows(evidence) if blow.group == group]
    for event in own:
        at, step = event.t - timeline.begin_t, event.integer("step")
        if event.kind is EventKind.SAVE:
            found.append(Mark(at=at, css="save", what=f"save of step {step}"))
        elif event.kind is EventKind.SAVE_FAILED:
            what = f"save of step {step} failed: {event.values['reason']}"
            found.append(Mark(at=at, css="save-failed", what=what))
        elif event.kind is EventKind.BACKSTOP_READ:
            found.append(_read_mark(event, timeline))
    return found


def _blow_mark(blow: Blow, timeline: Timeline) -> Mark:
    what = "death" if blow.target == UNKNOWN_TARGET else "kill"
    who = _who(blow.target, blow.group, blow.rank)
    return Mark(at=blow.t - timeline.begin_t, css="kill", what=f"{what} of {who}")


def _read_mark(read: Event, timeline: Timeline) -> Mark:
    what = f"step {read.integer('step')} read from a save"
    return Mark(at=read.t - timeline.begin_t, css="disaster", what=what)


def _who(target: str, group: int | None, rank: int | None) -> str:
    """What a blow hit."""
    if target == KillTarget.LIGHTHOUSE:
        return "the Lighthouse"
    if target in (KillTarget.GROUP, UNKNOWN_TARGET):
        return f"group\u00a0{group}"
    number = f" {rank}" if target == KillTarget.RANK and rank is not None else ""
    return f"{target}{number} of group {group}"


def _where_time_went(report: Mapping[str, Any]) -> str:
    account = report["goodput"]
    shares = [(Cause(name), share) for name, share in shares_by_cause(account).items()]
    seconds = {**account["lost_s_by_cause"], str(Cause.PRODUCTIVE): account["productive_s"]}
    rows = "".join(
        f"<tr><td>{report_charts.swatch(COLOURS[cause])} {words(cause)}</td>"
        f"<td>{seconds[cause]:.1f} s</td><td>{share:.1%}</td></tr>"
        for cause, share in sorted(shares, key=lambda one: -one[1])
    )
    heads = _tr(("cause", "all groups", "share"), "th")
    bar = report_charts.stacked(shares)
    return f'<h2>Where the time went</h2>{bar}<table class="causes">{heads}{rows}</table>'


def _kills(report: Mapping[str, Any]) -> str:
    """One row for each kill, and for each death that only others saw: how it was survived."""
    if not report["survival"]:
        return ""
    blow = "death" if any(kill["target"] == UNKNOWN_TARGET for kill in report["survival"]) else "kill"
    heads = ("at", "hit", "at step", "others waited", "back after", "rounds again", "cost")
    rows = [
        (
            f"{kill['t']:.1f}{S}",
            _who(kill["target"], kill["group"], kill["rank"]),
            str(kill["step"]),
            _number(kill["stall_s"], S, 2),
            _number(kill["rejoin_s"], S, 1),
            str(kill["rounds_recomputed"]),
            f"{kill['lost_s']:.1f}{S}",
        )
        for kill in report["survival"]
    ]
    note = (
        "<p>Others waited: for their next commit, beyond a typical step. Back after: until the group that "
        "was hit committed again; - if it did not. Rounds again: rounds that were computed once more until "
        "the next row. Cost: seconds of all groups together.</p>"
    )
    return f"<h2>How each {blow} was survived</h2>{table(heads, rows)}{note}"


def _saves(evidence: Evidence, report: Mapping[str, Any], timeline: Timeline) -> str:
    """The saves that were made or failed, and the disasters that they were for."""
    made = evidence.of(EventKind.SAVE, EventKind.SAVE_FAILED, EventKind.BACKSTOP_READ)
    if not made:
        return ""
    rows = [
        (f"{event.t - timeline.begin_t:.1f}{S}", str(event.group), str(event.integer("step")), *_save(event))
        for event in made
    ]
    said = f"{report['backstop_saves']} saves, {report['saves_failed']} failed."
    if report["disaster_restores"]:
        longest = _number(report["disaster_s"]["max"], S, 1)
        said += f" All groups died {report['disaster_restores']} times: "
        said += f"{report['steps_restored_over']} committed steps were computed again, "
        said += f"and at most {longest} passed without a commit."
    heads = ("at", "group", "step", "what", "took", "stood still")
    return f"<h2>Saves</h2><p>{said}</p>{table(heads, rows)}"


def _save(event: Event) -> tuple[str, str, str]:
    """What an event says of a save: what happened, how long it took, how long training stood still."""
    took = f"{event.number('seconds'):.2f}{S}"
    size = f"{event.number('bytes') / 1e6:.1f} MB"
    match event.kind:
        case EventKind.SAVE:
            return f"saved, {size}", took, f"{event.number('blocked_s') * 1000:.1f} ms"
        case EventKind.BACKSTOP_READ:
            return f"READ after all groups had died, {size}", took, "-"
        case _:
            return f"FAILED: {event.values['reason']}", "-", "-"


def _last_signs(report: Mapping[str, Any]) -> str:
    heads = ("group", "steps", "last sign", "how it ended")
    rows = [
        (str(one["group"]), _count(one["steps"]), _number(one["t"], S, 1), one["said"])
        for one in report["last_signs"]
    ]
    return f"<h2>The last of each group</h2>{table(heads, rows)}" if rows else ""


def _count(steps: int | None) -> str:
    return "-" if steps is None else str(steps)
