"""Several runs side by side on one self-contained page: their figures, loss curves and lost time. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from replica.goodput import Cause
from train.evidence.eras import find_eras
from train.evidence.figures import last_commits
from train.evidence.files import Evidence
from train.evidence.goodput import shares_by_cause
from train.report_charts import COLOURS, Axis, Series, curves, legend, stacked, time_axis, words
from train.report_html import loss_by_time, page, table

PALETTE = ("#1f5fa8", "#d9822b", "#2e8b57", "#c2372e", "#8e7cc3", "#7a5c3e", "#d36ba8", "#777777")
FIGURES: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("broken promises", lambda report: str(len(report["violations"]))),
    ("steps committed", lambda report: str(report["steps_committed"])),
    ("wall time", lambda report: _text(report["wall_s"], "{:.1f} s")),
    ("kills", lambda report: str(report["kills"])),
    ("deaths seen", lambda report: str(report["deaths"])),
    ("steps discarded", lambda report: str(report["steps_discarded"])),
    ("steps replayed", lambda report: str(report["steps_replayed"])),
    ("rounds computed again", lambda report: str(report["rounds_recomputed"])),
    ("final loss", lambda report: _text(report["final_loss"], "{:.4f}")),
    ("final digest", lambda report: (report["final_digest"] or "-")[:12]),
    ("goodput", lambda report: _text(report["goodput"]["ratio"], "{:.1%}")),
    ("fault-free step", lambda report: _text(report["measures"]["fault_free_step_s"], "{:.3f} s")),
    ("attempts committed", lambda report: _text(report["measures"]["committed_of_attempted"], "{:.1%}")),
    (
        "token rate of fault-free",
        lambda report: _text(report["measures"]["token_rate_of_fault_free"], "{:.1%}"),
    ),
    ("groups taking part", lambda report: _text(report["breadth_mean"], "{:.1%}")),
    ("survivors stalled, longest", lambda report: _text(report["survivor_stall_s"]["max"], "{:.2f} s")),
    ("killed group back in, median", lambda report: _text(report["rejoin_s"]["p50"], "{:.1f} s")),
    ("heals", lambda report: str(report["heals"])),
    ("heal, median", lambda report: _text(report["heal_s"]["p50"], "{:.2f} s")),
    ("saves", lambda report: str(report["backstop_saves"])),
    ("saves failed", lambda report: str(report["saves_failed"])),
    ("disaster restores", lambda report: str(report["disaster_restores"])),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is compared of a run; loss by step, and by seconds since the run began."""

    name: str
    report: Mapping[str, Any]
    by_step: Sequence[tuple[float, float]]
    by_time: Sequence[tuple[float, float]]


def make_run(name: str, evidence: Evidence, report: Mapping[str, Any]) -> Run:
    """The run in folder `evidence.out`, under the name by which the comparison calls it."""
    eras = find_eras(evidence)
    times = [event.t for event in evidence.events] + [line.t for line in evidence.lines]
    lines = last_commits(evidence, eras)
    return Run(
        name=name,
        report=report,
        by_step=[(float(line.step), line.loss) for line in lines if line.loss is not None],
        by_time=loss_by_time(evidence, eras, min(times, default=0.0)),
    )


def render_comparison(runs: Sequence[Run]) -> str:
    """The page. It needs nothing from outside and runs no script."""
    colours = [PALETTE[index % len(PALETTE)] for index in range(len(runs))]
    names = legend(zip(colours, (run.name for run in runs), strict=True))
    by_step = [
        Series(name=run.name, colour=c, points=run.by_step) for run, c in zip(runs, colours, strict=True)
    ]
    by_time = [
        Series(name=run.name, colour=c, points=run.by_time) for run, c in zip(runs, colours, strict=True)
    ]
    steps = Axis(low=0.0, high=_end(by_step), label=lambda step: f"{step:.0f}")
    seconds = time_axis(_end(by_time))
    parts = [
        table(
            ("", *(run.name for run in runs)),
            [(name, *(figure(run.report) for run in runs)) for name, figure in FIGURES],
        ),
        f"<p>{escape(_digests(runs))}</p>",
        f"<h2>Loss by step</h2>{names}{curves(by_step, steps)}",
        f"<h2>Loss by time since the start</h2>{names}{curves(by_time, seconds)}",
        f"<h2>Where the time went</h2>{_bars(runs)}",
    ]
    return page(f"Headway: {len(runs)} runs side by side", parts)


def _end(series: Sequence[Series]) -> float:
    return max((x for one in series for x, _ in one.points), default=1.0)


def _digests(runs: Sequence[Run]) -> str:
    """Whether the runs ended with the same bits, where they can be compared."""
    ends = {(run.report["steps_committed"], run.report["final_digest"]) for run in runs}
    if any(digest is None for _, digest in ends):
        return "Final states are not compared: not every run has a digest of its own."
    if len({steps for steps, _ in ends}) > 1:
        return "Final states are not compared: the runs ended at different steps."
    return (
        "All runs ended with the same state, bit for bit."
        if len(ends) == 1
        else "The runs ended with different states."
    )


def _bars(runs: Sequence[Run]) -> str:
    """A bar for each run: the share of all groups' time that each cause has."""
    shares = [
        [(Cause(name), share) for name, share in shares_by_cause(run.report["goodput"]).items()]
        for run in runs
    ]
    present = {cause for one in shares for cause, _ in one}
    bars = [f"<p>{escape(run.name)}</p>{stacked(one)}" for run, one in zip(runs, shares, strict=True)]
    return legend((COLOURS[cause], words(cause)) for cause in Cause if cause in present) + "".join(bars)


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
