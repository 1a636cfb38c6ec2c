"""The page: well-formed, self-contained, fit for a phone; a row per group, kill and save."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from simulated_history import history
from timed_history import OUTSIDE

from replica.goodput import Cause
from replica.ledger import EventKind
from train.evidence.blows import find_blows
from train.evidence.files import Evidence
from train.report import build_report
from train.report_html import MAX_ROWS, render_html, table


def parse(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))


def page(evidence: Evidence, summary: str = "all is well") -> tuple[str, ElementTree.Element]:
    text = render_html(evidence, build_report(evidence), summary)
    return text, parse(text)


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if element.get("class") == name]


def section(root: ElementTree.Element, title: str) -> list[list[str]]:
    """The rows of the table under a heading."""
    children = next(root.iter("body"))
    names = [child.text if child.tag == "h2" else "" for child in children]
    below = list(children)[names.index(title) :]
    found = next(each for child in below for each in child.iter("table"))
    return [["".join(cell.itertext()).replace("\u00a0", " ") for cell in row] for row in found.iter("tr")]


@pytest.mark.parametrize("shape", [{}, {"groups": 5, "keeps": True}, {"kills": 0}, {"disasters": 1}])
def test_page_is_self_contained_and_fits_a_phone(shape: dict[str, Any]) -> None:
    text, root = page(history(3, **shape))
    assert not {element.tag for element in root.iter()} & {"script", "link", "img", "iframe", "a"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not {name for name in attributes if name in ("src", "href") or name.startswith("on")}
    for outside in ("http", "url(", "@import"):
        assert outside not in text
    viewport = next(meta for meta in root.iter("meta") if meta.get("name") == "viewport")
    assert viewport.get("content") == "width=device-width, initial-scale=1"
    style = next(root.iter("style")).text or ""
    assert "@media (max-width: 40rem)" in style
    assert "svg { display: block; width: 100%" in style
    for svg in root.iter("svg"):
        assert svg.get("preserveAspectRatio") == "none"
        assert svg.find(".//text") is None  # it would be stretched
    for found in root.iter("table"):
        assert found.get("class") == "causes" or found in [
            each.find("table") for each in of_class(root, "wide")
        ]


@pytest.mark.parametrize("shape", [{}, {"groups": 5, "keeps": True}, {"kills": 0}, {"mode": "exact"}])
def test_page_shows_groups_and_kills(shape: dict[str, Any]) -> None:
    evidence = history(3, **shape)
    _, root = page(evidence)
    labels = [element.text for element in of_class(root, "row")]
    assert labels == [f"group {group}" for group in evidence.ledgers]
    assert len(of_class(root, "kill")) == 2 * len(evidence.of(EventKind.KILL))
    (curve,) = of_class(root, "curve")
    assert len((curve.get("points") or "").split()) == 15
    drawn = {element.get("class") for element in root.iter("rect")}
    causes = {Cause.PRODUCTIVE, Cause.HEALING} if evidence.deaths else {Cause.PRODUCTIVE}
    assert causes <= drawn


def test_one_row_for_each_kill() -> None:
    evidence = history(3)
    report = build_report(evidence)
    _, root = page(evidence)
    heads, *rows = section(root, "How each kill was survived")
    assert heads == ["at", "hit", "at step", "others waited", "back after", "rounds again", "cost"]
    assert len(rows) == 3
    for row, kill in zip(rows, report["survival"], strict=True):
        assert row[0] == f"{kill['t']:.1f} s"
        assert row[1].endswith(f"group {kill['group']}")
        assert row[4] == f"{kill['rejoin_s']:.1f} s"
        assert row[6] == f"{kill['lost_s']:.1f} s"


def test_deaths_that_only_others_saw_have_rows_and_marks() -> None:
    evidence = history(7, kills=2, groups=4)
    outside = replace(evidence, events=tuple(each for each in evidence.events if each.kind not in OUTSIDE))
    deaths = [blow for blow in find_blows(outside) if blow.witnesses]
    assert deaths
    _, root = page(outside)
    rows = section(root, "How each death was survived")[1:]
    assert [row[1] for row in rows] == [f"group {blow.group}" for blow in deaths]
    titles = [mark.findtext("title") or "" for mark in of_class(root, "kill")]
    assert sum(title.startswith("death of group") for title in titles) == 2 * len(deaths)


def test_causes_add_up_to_the_whole() -> None:
    _, root = page(history(3))
    heads, *rows = section(root, "Where the time went")
    assert heads == ["cause", "all groups", "share"]
    assert sum(float(row[2].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.5)
    assert {"productive", "ended attempt", "not provisioned"} <= {row[0].strip() for row in rows}
    bar = next(svg for svg in root.iter("svg") if svg.find("line") is None and svg.find("polyline") is None)
    assert sum(float(rect.get("width") or 0) for rect in bar.iter("rect")) == pytest.approx(1000, abs=1)


def test_saves_and_disasters_have_rows_and_marks() -> None:
    evidence = history(9, disasters=2)
    _, root = page(evidence)
    for kind, css in ((EventKind.SAVE, "save"), (EventKind.SAVE_FAILED, "save-failed")):
        marks = of_class(root, css)
        assert marks
        assert len(marks) == len(evidence.of(kind))
    assert (of_class(root, "save")[0].findtext("title") or "").startswith("save of step ")
    # Each read in the row of its group, and each disaster once more in the curve.
    reads = evidence.of(EventKind.BACKSTOP_READ)
    assert len(of_class(root, "disaster")) == len(reads) + 2
    whats = [row[3].split(":")[0].split(",")[0] for row in section(root, "Saves")[1:]]
    assert whats.count("saved") == len(evidence.of(EventKind.SAVE))
    assert whats.count("FAILED") == len(evidence.of(EventKind.SAVE_FAILED))
    assert whats.count("READ after all groups had died") == len(reads)
    assert "All groups died 2 times" in "".join(root.itertext())


def test_the_last_of_each_group() -> None:
    evidence = history(3, kills=0)
    cut = replace(evidence, events=tuple(e for e in evidence.events if e.kind is not EventKind.FINISHED))
    _, root = page(cut)
    rows = section(root, "The last of each group")[1:]
    assert [row[:2] for row in rows] == [[str(group), "14"] for group in evidence.ledgers]
    assert all("it committed step 13" in row[3] for row in rows)
    assert all(
        row[3].startswith("finished at ") for row in section(page(evidence)[1], "The last of each group")[1:]
    )


def test_broken_promises_stand_on_top() -> None:
    evidence = history(3, kills=0)
    broken = replace(evidence, ledgers={**evidence.ledgers, 0: evidence.ledgers[0][2:]})
    text, _ = page(broken)
    assert "BROKEN PROMISES" in text
    assert "No broken promise" not in text
    assert "No broken promise." in page(evidence)[0]


def test_text_is_escaped() -> None:
    evidence = history(9, disasters=1)
    events = [
        replace(e, values={**e.values, "reason": "<i>disk</i>"}) if e.kind is EventKind.SAVE_FAILED else e
        for e in evidence.events
    ]
    named = replace(evidence, events=tuple(events), out=Path("<run>"))
    text, _ = page(named, summary="<b>files & more</b>")
    assert "&lt;b&gt;files &amp; more&lt;/b&gt;" in text
    assert "Headway: &lt;run&gt;" in text
    assert "<i>" not in text
    assert table(["<a>"], [["<b>"]]).count("&lt;") == 2


def test_long_tables_show_the_newest_rows() -> None:
    text = table(["n"], [[str(n)] for n in range(MAX_ROWS + 5)])
    assert "5 earlier rows are left out here." in text
    assert "<td>4</td>" not in text
    assert f"<td>{MAX_ROWS + 4}</td>" in text


def test_kill_of_the_lighthouse_is_in_the_curve_alone() -> None:
    evidence = history(3, kills=0)
    values = {"group": None, "rank": None, "target": "lighthouse", "step": 3}
    kill = replace(evidence.events[20], kind=EventKind.KILL, values=values)
    _, root = page(replace(evidence, events=(*evidence.events[:20], kill, *evidence.events[20:])))
    (mark,) = of_class(root, "kill")
    assert (mark.findtext("title") or "").startswith("kill of the Lighthouse at ")
    assert section(root, "How each kill was survived")[1][1] == "the Lighthouse"


def test_page_of_a_long_run_stays_small() -> None:
    text, root = page(history(1, steps=2500, kills=0, rounds=1, groups=2))
    assert len(list(root.iter("rect"))) < 2 * 1000 + 20
    assert len(text) < 400_000


def test_run_without_evidence_has_a_page() -> None:
    text, _ = page(Evidence(out=Path("run"), ledgers={}, events=()))
    assert "No step was committed." in text
