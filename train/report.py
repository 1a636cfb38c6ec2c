"""What a run amounted to: report.json for programs, report.html and a short report for people.

    python -m train.report DIR...

prints the short one for each run and writes the others, from the files that the run left behind,
however it ended. Of several runs it also writes a page that shows them side by side. With --merge the
folders are those that each host kept of one run. The exit code is 0 if no promise was broken, 1 if one
was, 4 for bad input.
"""

import argparse
import gc
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from replica.errors import ExitCode, UserError
from replica.goodput import Cause
from replica.ledger import EventKind
from train.evidence import figures
from train.evidence.blows import UNKNOWN_TARGET, find_blows
from train.evidence.checker import check
from train.evidence.eras import find_eras
from train.evidence.files import Evidence, read_evidence
from train.evidence.gaps import not_judged
from train.evidence.goodput import goodput, measures, shares_by_cause
from train.evidence.last_signs import Ending, last_signs
from train.evidence.repeats import find_repeats
from train.evidence.survival import survival
from train.evidence.timeline import find_timeline
from train.evidence.violations import Violation, ViolationKind
from train.report_comparison import make_run, render_comparison
from train.report_html import render_html
from train.report_merge import merge
from train.report_scalars import require_tensorboard, write_scalars

VIOLATED = 1
SHOWN_PER_KIND = 3
LEAST_SHOWN = 0.0005


def build_report(evidence: Evidence) -> dict[str, Any]:
    """The report of a run as a JSON object. Times are in seconds, samples are counted in rounds.

    A figure that the evidence cannot give is None. `violations` lists every broken promise.
    """
    violations = check(evidence)
    eras = find_eras(evidence)
    repeats = find_repeats(evidence)
    steps = figures.last_commits(evidence, eras)
    heals = figures.heals(evidence)
    save_s, blocked_s = figures.saves(evidence)
    stalls_s, rejoins_s = figures.survivor_stalls_s(evidence), figures.rejoins_s(evidence, eras)
    account = goodput(evidence, find_timeline(evidence))
    return {
        "steps_committed": len(steps),
        "kills": len(evidence.of(EventKind.KILL)),
        "deaths": sum(blow.is_death for blow in find_blows(evidence)),
        "steps_discarded": figures.steps_discarded(evidence),
        "steps_replayed": figures.steps_replayed(evidence, repeats),
        "steps_recommitted": figures.steps_recommitted(evidence, repeats),
        "rounds_recomputed": figures.rounds_recomputed(evidence, eras),
        "samples_lost": figures.count(violations, *figures.LOST) if evidence.events else None,
        "samples_repeated": figures.count(violations, *figures.REPEATED) if evidence.events else None,
        "digests_agree": _digests_agree(evidence, violations),
        "final_digest": figures.final_digest(evidence, eras),
        "first_loss": steps[0].loss if steps else None,
        "final_loss": steps[-1].loss if steps else None,
        "survivor_stall_s": figures.quantiles(stalls_s, "p50", "p99", "max"),
        "rejoin_s": figures.quantiles(rejoins_s, "p50", "max"),
        "heals": len(heals),
        "heal_s": figures.quantiles([seconds for seconds, _ in heals], "p50", "max"),
        "heal_mb": figures.quantiles([size / 1e6 for _, size in heals], "p50", "max"),
        "heal_mb_per_s": figures.heal_mb_per_s(evidence),
        "breadth_mean": figures.breadth_mean(evidence),
        "goodput": account,
        "survival": survival(
            evidence, eras, costs=account["by_kill"], stalls_s=stalls_s, rejoins_s=rejoins_s
        ),
        "last_signs": last_signs(evidence),
        "measures": measures(evidence, eras),
        "backstop_saves": len(evidence.of(EventKind.SAVE)),
        "saves_failed": len(evidence.of(EventKind.SAVE_FAILED)),
        "save_s": figures.quantiles(save_s, "p50", "max"),
        "save_blocked_s": figures.quantiles(blocked_s, "p50", "max"),
        "backstop_reads": len(evidence.of(EventKind.BACKSTOP_READ)),
        "disaster_restores": len(eras.disasters),
        "disaster_s": figures.quantiles(figures.disasters_s(evidence, eras), "p50", "max"),
        "steps_restored_over": figures.steps_restored_over(repeats),
        "wall_s": round(figures.wall_s(evidence), 3),
        "versions": _versions(),
        "not_judged": not_judged(evidence),
        "violations": [asdict(violation) for violation in violations],
        "out": str(evidence.out),
    }


def write_report(out: Path) -> dict[str, Any]:
    """Judge the run in folder `out`; write `report.json` and `report.html` there, each whole or not
    at all; returns the report.

    Raises UserError where there is no run, OSError where a file cannot be written.
    """
    return _judge(out)[1]


def _judge(out: Path) -> tuple[Evidence, dict[str, Any]]:
    evidence = read_evidence(out)
    report = build_report(evidence)
    _publish(out / "report.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    _publish(out / "report.html", render_html(evidence, report, format_report(report)))
    return evidence, report


def _publish(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        unfinished.unlink(missing_ok=True)


def format_report(report: dict[str, Any]) -> str:
    """The short report for people: a figure a line, then every kind of broken promise."""
    rows = [
        ("steps committed", f"{report['steps_committed']} in {report['wall_s']:.0f} s"),
        ("kills survived", f"{report['kills']}"),
        *_death_rows(report),
        ("steps replayed", f"{report['steps_replayed']}"),
        *([("steps recommitted", f"{report['steps_recommitted']}")] if report["steps_recommitted"] else []),
        (
            "steps discarded",
            f"{report['steps_discarded']}, rounds computed again {report['rounds_recomputed']}",
        ),
        ("samples", _samples(report)),
        ("state of all groups", _agreement(report["digests_agree"])),
        ("loss", f"first {_figure(report['first_loss'])}, final {_figure(report['final_loss'])}"),
        ("survivors stalled", _spread(report["survivor_stall_s"])),
        ("killed group back in", _spread(report["rejoin_s"])),
        ("heals from peers", _heals(report)),
        *_goodput_rows(report),
        *_save_rows(report),
        ("checkpoint reads", f"{report['backstop_reads']}"),
        *_unfinished_rows(report),
        ("files", report["out"]),
        *(("not judged", sentence) for sentence in report["not_judged"]),
    ]
    lines = [f"{name:<21} {value}" for name, value in rows]
    return "\n".join([*lines, *_violation_lines(report["violations"], is_partial=bool(report["not_judged"]))])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report of each run named, and write its files; returns the exit code."""
    # Millions of records without a cycle among them: looking for one takes a quarter of the time.
    gc.disable()
    try:
        chosen = _chosen(argv)
        reports = _write_all(chosen.out, chosen.comparison, chosen.tensorboard)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.DO_NOT_RESTART
    except OSError as error:
        print(f"error: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return ExitCode.DO_NOT_RESTART
    finally:
        gc.enable()
    return VIOLATED if any(report["violations"] for report in reports) else 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def _chosen(argv: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says; parts of a run are put together here, and are one run from then on."""
    chosen = _parser().parse_args(argv)
    if chosen.tensorboard is not None:
        require_tensorboard()
    if chosen.comparison is not None and not chosen.comparison.absolute().parent.is_dir():
        raise UserError(f"there is no folder {chosen.comparison.parent} for --comparison; make it first")
    if chosen.merge is not None:
        merge(chosen.out, chosen.merge)
        chosen.out = [chosen.merge]
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m train.report", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", nargs="+", type=Path, metavar="DIR", help="the --out folder of a run")
    parser.add_argument(
        "--merge",
        type=Path,
        metavar="NEW",
        help="the folders are those of the hosts of one run: put them together in folder NEW and judge that",
    )
    parser.add_argument(
        "--comparison",
        type=Path,
        metavar="FILE",
        help="where the page of several runs goes; default: comparison.html beside the first run",
    )
    parser.add_argument(
        "--tensorboard",
        type=Path,
        metavar="LOGDIR",
        help="also write scalars by step for TensorBoard, a folder for each run (extra `tensorboard`)",
    )
    return parser


def _write_all(outs: Sequence[Path], comparison: Path | None, logdir: Path | None) -> list[dict[str, Any]]:
    """Write the files of all runs and what is asked for beside, print what there is; the reports."""
    runs = []
    for name, out in zip(run_names(outs), outs, strict=True):
        evidence, report = _judge(out)
        print(format_report(report), end="\n" if out is outs[-1] else "\n\n")
        if logdir is not None:
            write_scalars(evidence, logdir / name)
        runs.append(make_run(name, evidence, report))
    if logdir is not None:
        print(f"\ntensorboard           {logdir}")
    if len(runs) > 1 or comparison is not None:
        page = comparison or outs[0].absolute().parent / "comparison.html"
        _publish(page, render_comparison(runs))
        print(f"\ncomparison            {page}")
    return [dict(run.report) for run in runs]


def run_names(outs: Sequence[Path]) -> list[str]:
    """A name for each run that no other has: its folder's, with as much of the path as that takes."""
    parts = [out.absolute().parts[1:] for out in outs]
    names = []
    for index, own in enumerate(parts):
        others = [other for place, other in enumerate(parts) if place != index and other != own]
        depth = 1
        while depth < len(own) and any(other[-depth:] == own[-depth:] for other in others):
            depth += 1
        names.append("-".join(own[-depth:]) or "run")
    return names


def _digests_agree(evidence: Evidence, violations: Sequence[Violation]) -> bool | None:
    """None where no digest was computed, so that nothing was compared."""
    if all(line.digest is None for line in evidence.lines):
        return None
    return figures.count(violations, ViolationKind.DIGEST_MISMATCH) == 0


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("headway", "torch", "torchft"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _death_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """How many groups were seen to die, where not all of it was kills."""
    unclaimed = sum(blow["target"] == UNKNOWN_TARGET for blow in report["survival"])
    if not unclaimed:
        return []
    return [
        ("deaths seen", f"{report['deaths']}" + (f", {unclaimed} not by a kill" if report["kills"] else ""))
    ]


def _samples(report: dict[str, Any]) -> str:
    if report["samples_lost"] is None:
        return "not judged"
    return f"{report['samples_lost']} lost, {report['samples_repeated']} repeated"


def _agreement(agree: bool | None) -> str:
    if agree is None:
        return "not compared: no digests"
    return "equal, bit for bit, after every step that both committed" if agree else "NOT EQUAL"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _spread(spread: dict[str, float | None]) -> str:
    known = [f"{name} {value:.2f} s" for name, value in spread.items() if value is not None]
    return ", ".join(known) or "none"


def _heals(report: dict[str, Any]) -> str:
    if not report["heals"]:
        return "0"
    rate, size = report["heal_mb_per_s"], report["heal_mb"]["p50"]
    speed = "" if rate is None else f", {size:.1f} MB at {rate:.1f} MB/s"
    return f"{report['heals']} ({_spread(report['heal_s'])}{speed})"


def _goodput_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Where all groups' time went, what a kill cost of it, and the published measures."""
    goodput, measures = report["goodput"], report["measures"]
    shares = shares_by_cause(goodput)
    shares.pop(Cause.PRODUCTIVE, None)
    largest = sorted(shares.items(), key=lambda one: -one[1])
    lost = [f"{cause.replace('_', ' ')} {share:.1%}" for cause, share in largest if share >= LEAST_SHOWN]
    per_kill = [kill["lost_s"] for kill in goodput["by_kill"]]
    rows = [
        ("goodput", f"{_percent(goodput['ratio'])} of all groups' time was productive"),
        ("lost to", ", ".join(lost) or "nothing"),
        ("attempts committed", _percent(measures["committed_of_attempted"])),
        ("tokens per second", f"{_percent(measures['token_rate_of_fault_free'])} of the rate without faults"),
        ("groups taking part", f"{_percent(measures['breadth_mean'])} of those alive"),
    ]
    if per_kill:
        spread = _spread(figures.quantiles(per_kill, "p50", "max"))
        discarded = f"{measures['discarded_steps_per_kill']:.2f} steps discarded"
        blow = "kill" if report["kills"] else "death"
        rows.insert(2, (f"cost of a {blow}", f"{discarded}, {spread} of all groups' time"))
    return rows


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{share:.1%}"


def _save_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What there is to say of saves and of disasters; nothing for a run that knew neither."""
    rows = []
    if report["backstop_saves"] or report["saves_failed"]:
        failed = f", {report['saves_failed']} FAILED" if report["saves_failed"] else ""
        rows.append(("saves", f"{report['backstop_saves']}{failed}{_stood_still(report['save_blocked_s'])}"))
    if report["disaster_restores"]:
        again = f"{report['steps_restored_over']} steps computed again"
        without = f"without a commit {_spread(report['disaster_s'])}"
        rows.append(("disaster restores", f"{report['disaster_restores']}, {again}, {without}"))
    return rows


def _unfinished_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Where the run did not come to its end: what is known last of each group."""
    last = report["last_signs"]
    if all(_ended_well(one) for one in last):
        return []
    return [(f"group {one['group']} at the end", one["said"]) for one in last]


def _ended_well(last: dict[str, Any]) -> bool:
    return bool(last["ending"] == Ending.FINISHED or (last["ending"] == Ending.EXITED and last["code"] == 0))


def _stood_still(blocked_s: dict[str, float | None]) -> str:
    known = [f"{name} {value * 1000:.1f} ms" for name, value in blocked_s.items() if value is not None]
    return f" (training stood still: {', '.join(known)})" if known else ""


def _violation_lines(violations: Sequence[dict[str, Any]], *, is_partial: bool) -> list[str]:
    """One line that says how many there are, then the first few of each kind."""
    if not violations:
        return ["no broken promise" + (" in what can be judged" if is_partial else "")]
    lines = [f"BROKEN PROMISES: {len(violations)}"]
    for kind, found in groupby(sorted(violations, key=lambda one: str(one["kind"])), lambda one: one["kind"]):
        same = list(found)
        lines += [f"  {kind}: {one['text']}" for one in same[:SHOWN_PER_KIND]]
        if len(same) > SHOWN_PER_KIND:
            lines.append(f"  {kind}: {len(same) - SHOWN_PER_KIND} more in report.json")
    return lines


if __name__ == "__main__":
    sys.exit(main())
