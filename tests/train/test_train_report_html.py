"""The page: well-formed, self-contained, one row per group, one mark per kill."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from simulated_history import history

from replica.ledger import EventKind, Outcome
from train.evidence.files import Evidence
from train.report import build_report
from train.report_html import SLICES, render_html


def page(evidence: Evidence, summary: str = "all is well") -> tuple[str, ElementTree.Element]:
    text = render_html(evidence, build_report(evidence), summary)
    well_formed = text.removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', "")
    return text, ElementTree.fromstring(well_formed)


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if element.get("class") == name]


@pytest.mark.parametrize("shape", [{}, {"groups": 5, "keeps": True}, {"kills": 0}, {"mode": "exact"}])
def test_page_shows_groups_kills_heals_and_attempts(shape: dict[str, Any]) -> None:
    evidence = history(3, **shape)
    text, root = page(evidence)
    assert "src=" not in text
    assert "http" not in text
    assert "<script" not in text
    labels = [element.text for element in root.iter("text")]
    for group in evidence.ledgers:
        assert f"group {group}" in labels
    assert len(of_class(root, "kill")) == 2 * len(evidence.of(EventKind.KILL))
    assert len(of_class(root, "heal")) == len(evidence.of(EventKind.HEAL))
    committed = sum(line.outcome is Outcome.COMMITTED for line in evidence.lines)
    assert len(of_class(root, "committed")) == committed
    assert len(of_class(root, "failed")) == len(evidence.lines) - committed
    assert len(of_class(root, "alive")) == len(evidence.of(EventKind.GROUP_STARTED))
    (curve,) = of_class(root, "loss")
    assert len((curve.get("points") or "").split()) == 14


def test_long_runs_are_thinned() -> None:
    _, root = page(history(1, steps=2500, kills=0, rounds=1, groups=2))
    (curve,) = of_class(root, "loss")
    assert len((curve.get("points") or "").split()) == 1250


def test_time_bar_adds_up_to_the_whole() -> None:
    _, root = page(history(3))
    slices = [float(rect.get("width") or 0) for rect in root.iter("rect") if rect.get("fill")]
    assert sum(slices) == pytest.approx(870, abs=1)
    told = [item.find("span").tail or "" for item in root.iter("li")]  # type: ignore[union-attr]
    shown = {"_".join(text.split()[:-1]) for text in told}
    assert shown <= set(SLICES)
    assert {"productive", "ended_attempt", "not_provisioned"} <= shown
    assert sum(float(text.split()[-1].rstrip("%")) for text in told) == pytest.approx(100, abs=0.5)


def test_text_is_escaped() -> None:
    text, _ = page(history(3), summary="<b>files & more</b>")
    assert "&lt;b&gt;files &amp; more&lt;/b&gt;" in text


def test_kill_of_the_lighthouse_is_in_the_curve_alone() -> None:
    evidence = history(3, kills=0)
    values = {"group": None, "rank": None, "target": "lighthouse", "step": 3}
    kill = replace(evidence.events[20], kind=EventKind.KILL, values=values)
    _, root = page(replace(evidence, events=(*evidence.events[:20], kill, *evidence.events[20:])))
    (mark,) = of_class(root, "kill")
    assert (mark.findtext("title") or "").startswith("kill of the Lighthouse at ")


def test_saves_and_disasters_are_marked() -> None:
    evidence = history(9, disasters=2)
    _, root = page(evidence)
    for kind, css in ((EventKind.SAVE, "save"), (EventKind.SAVE_FAILED, "save-failed")):
        marks = of_class(root, css)
        assert marks
        assert len(marks) == len(evidence.of(kind))
    assert (of_class(root, "save")[0].findtext("title") or "").startswith("save of step ")
    # Each read in the row of its group, and each disaster once more in the curve.
    assert len(of_class(root, "disaster")) == len(evidence.of(EventKind.BACKSTOP_READ)) + 2
    (curve,) = of_class(root, "loss")
    assert len((curve.get("points") or "").split()) == 14


def test_run_without_evidence_has_a_page() -> None:
    text, _ = page(Evidence(out=Path("run"), ledgers={}, events=()))
    assert "No step was committed." in text
