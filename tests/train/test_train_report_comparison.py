"""Several runs side by side: their figures, curves and bars, and whether they ended with the same bits."""

from dataclasses import replace
from xml.etree import ElementTree

from simulated_history import history
from test_train_report_html import parse

from train.evidence.files import Evidence
from train.report import build_report
from train.report_comparison import FIGURES, Run, make_run, render_comparison


def run(name: str, evidence: Evidence) -> Run:
    return make_run(name, evidence, build_report(evidence))


def rows(root: ElementTree.Element) -> dict[str, list[str]]:
    table = next(root.iter("table"))
    cells = [[cell.text or "" for cell in row] for row in table.iter("tr")]
    return {row[0]: row[1:] for row in cells}


def test_a_column_for_each_run_and_a_row_for_each_figure() -> None:
    text = render_comparison([run("with <kills>", history(3)), run("without", history(3, kills=0))])
    root = parse(text)
    found = rows(root)
    assert set(found) == {"", *(name for name, _ in FIGURES)}
    assert found[""] == ["with <kills>", "without"]
    assert found["kills"] == ["3", "0"]
    assert found["steps committed"] == ["14", "14"]
    assert len(list(root.iter("polyline"))) == 4
    bars = [svg for svg in root.iter("svg") if svg.find("polyline") is None]
    assert [round(sum(float(bar.get("width") or 0) for bar in svg.iter("rect"))) for svg in bars] == [
        1000
    ] * 2
    for outside in ("src=", "href=", "http", "url(", "<script", "@import"):
        assert outside not in text


def test_whether_the_states_are_the_same() -> None:
    exact = [run(str(seed), history(seed, mode="exact")) for seed in (1, 2)]
    assert "All runs ended with the same state, bit for bit." in render_comparison(exact)
    fast = [run(str(seed), history(seed)) for seed in (1, 2)]
    assert "ended with different states" in render_comparison(fast)
    longer = run("longer", history(1, mode="exact", steps=16))
    assert "ended at different steps" in render_comparison([exact[0], longer])
    blind = replace(exact[0], report={**exact[0].report, "final_digest": None})
    assert "not every run has a digest" in render_comparison([blind, exact[1]])


def test_a_run_that_did_nothing_can_be_compared() -> None:
    empty = run("empty", Evidence(out=history(1).out, ledgers={}, events=()))
    found = rows(parse(render_comparison([empty, run("good", history(1))])))
    assert found["final loss"][0] == "-"
    assert found["broken promises"] == ["1", "0"]
