"""Charts: places on the axis, timelines that stay small, and short things that stay visible."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.goodput import Cause
from train.evidence.timeline import Interval
from train.report_charts import (
    COLOURS,
    MAX_POINTS,
    PLANE,
    Axis,
    Mark,
    Series,
    condensed,
    curves,
    legend,
    seconds_label,
    stacked,
    time_axis,
    timelines,
)


def axis(high: float = 100.0) -> Axis:
    return time_axis(high)


def interval(begin_t: float, end_t: float, cause: Cause) -> Interval:
    return Interval(group=0, begin_t=begin_t, end_t=end_t, cause=cause)


def parse(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{text}</div>")


def test_every_cause_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(Cause)
    assert len(set(COLOURS.values())) == len(Cause)


def test_places_on_the_axis() -> None:
    assert [axis().x(value) for value in (-5, 0, 25, 100, 130)] == [0, 0, PLANE / 4, PLANE, PLANE]
    assert "<span>0 s</span><span>25 s</span>" in axis().ticks()
    assert axis(0.0).x(0.0) == 0


def test_times_in_the_unit_that_reads_best() -> None:
    times = (0, 1.26, 19, 119.4, 221, 600, 7199.6, 9000)
    assert [seconds_label(value) for value in times] == [
        "0.0 s", "1.3 s", "19.0 s", "119 s", "3:41 min", "10:00 min", "120:00 min", "2:30 h",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("end_s", "labels"),
    [
        (5, "0.0 s | 1.2 s | 2.5 s | 3.8 s | 5.0 s"),
        (100, "0 s | 25 s | 50 s | 75 s | 100 s"),
        (221, "0:00 min | 0:55 min | 1:50 min | 2:46 min | 3:41 min"),
        (14400, "0:00 h | 1:00 h | 2:00 h | 3:00 h | 4:00 h"),
    ],
)
def test_an_axis_has_one_unit(end_s: float, labels: str) -> None:
    (row,) = parse(time_axis(end_s).ticks())
    assert [label.text for label in row] == labels.split(" | ")


def test_curves_are_thinned_and_keep_both_ends() -> None:
    points = [(float(x), float(x)) for x in range(3 * MAX_POINTS)]
    root = parse(curves([Series(name="loss", colour="#000", points=points)], axis(points[-1][0])))
    (line,) = root.iter("polyline")
    drawn = (line.get("points") or "").split()
    assert len(drawn) <= MAX_POINTS + 1
    assert (drawn[0], drawn[-1]) == ("0.0,236.0", "1000.0,4.0")
    assert "No step was committed." in curves([Series(name="", colour="#000", points=[])], axis())


def test_marks_say_what_and_when() -> None:
    mark = Mark(at=50.0, css="kill", what="kill of <group 1>")
    root = parse(curves([Series(name="", colour="#000", points=[(0, 1)])], axis(), [mark]))
    (line,) = root.iter("line")
    assert (line.get("class"), line.get("x1"), line.findtext("title")) == (
        "kill", "500.0", "kill of <group 1> at 50.0 s",
    )  # fmt: skip


def test_timeline_shows_what_a_group_did() -> None:
    did = [interval(1000, 1060, Cause.PRODUCTIVE), interval(1060, 1100, Cause.RESTARTING)]
    root = parse(timelines([(7, did, [])], axis(), 1000.0))
    bars = [(bar.get("class"), bar.get("x"), bar.get("width")) for bar in root.iter("rect")]
    assert bars == [("productive", "0.0", "600.0"), ("restarting", "600.0", "400.0")]
    assert next(root.iter("rect")).findtext("title") == "productive from 0.0 s to 60.0 s"
    assert root.findtext(".//div[@class='row']") == "group 7"


def test_a_short_heal_stays_visible_in_a_long_run() -> None:
    did = [
        interval(0, 50_000.0, Cause.PRODUCTIVE),
        interval(50_000.0, 50_000.1, Cause.HEALING),
        interval(50_000.1, 100_000, Cause.PRODUCTIVE),
    ]
    shown = condensed(did, axis(100_000), 0.0)
    assert [cause for cause, _, _ in shown] == [Cause.PRODUCTIVE, Cause.HEALING, Cause.PRODUCTIVE]


def test_steps_shorter_than_a_column_become_one_stretch() -> None:
    did = []
    for step in range(5000):
        did += [interval(step, step + 0.8, Cause.PRODUCTIVE), interval(step + 0.8, step + 1, Cause.REDUCE)]
    assert condensed(did, axis(5000), 0.0) == [(Cause.PRODUCTIVE, 0.0, 5000.0)]


@given(
    lengths=st.lists(st.tuples(st.floats(0.001, 50), st.sampled_from(list(Cause))), min_size=1, max_size=60),
    gap=st.floats(0, 10),
)
def test_timeline_covers_what_the_intervals_cover_in_bounded_pieces(
    lengths: list[tuple[float, Cause]], gap: float
) -> None:
    did, at = [], gap
    for length, cause in lengths:
        did.append(interval(at, at + length, cause))
        at += length
    shown = condensed(did, axis(at), 0.0)
    column = at / PLANE
    assert len(shown) <= PLANE
    assert shown[0][1] == pytest.approx(gap, abs=2 * column)
    assert shown[-1][2] == pytest.approx(at, abs=2 * column)
    assert all(one[2] == pytest.approx(next_[1]) for one, next_ in pairwise(shown))
    assert {cause for cause, _, _ in shown} <= {cause for _, cause in lengths}


def test_a_gap_in_the_intervals_stays_a_gap() -> None:
    shown = condensed([interval(0, 10, Cause.QUORUM), interval(90, 100, Cause.QUORUM)], axis(), 0.0)
    assert [(round(begin), round(end)) for _, begin, end in shown] == [(0, 10), (90, 100)]


def test_stacked_bar_and_legend() -> None:
    root = parse(stacked([(Cause.PRODUCTIVE, 0.75), (Cause.HEALING, 0.25)]))
    assert [bar.get("width") for bar in root.iter("rect")] == ["750.0", "250.0"]
    assert "&lt;x&gt;" in legend([("#000", "<x>")])
