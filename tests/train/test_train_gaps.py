"""What is not there is said in a sentence, and is no broken promise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_history import history
from test_train_evidence import write
from timed_history import OUTSIDE

from replica.ledger import EventKind
from train.evidence.checker import check
from train.evidence.files import Evidence
from train.evidence.gaps import find_gaps, not_judged
from train.evidence.violations import ViolationKind
from train.report import build_report, format_report, main
from train.report_html import render_html


def of_hosts(evidence: Evidence, *groups: int) -> Evidence:
    """What the hosts of these groups kept, where nobody ran the groups together."""
    events = tuple(each for each in evidence.events if each.kind not in OUTSIDE and each.group in groups)
    return replace(evidence, ledgers={group: evidence.ledgers[group] for group in groups}, events=events)


SHAPES: list[dict[str, Any]] = [{}, {"keeps": True}, {"disasters": 1, "mode": "exact"}, {"disasters": 2}]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000), shape=st.sampled_from(SHAPES), hosts=st.sets(st.integers(0, 2), min_size=1)
)
def test_the_part_of_some_hosts_breaks_no_promise(seed: int, shape: dict[str, Any], hosts: set[int]) -> None:
    part = of_hosts(history(seed, **shape), *hosts)
    assert check(part) == []
    missing = find_gaps(part).ledgers
    assert missing <= {0, 1, 2} - hosts
    assert len(not_judged(part)) == bool(missing)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from(SHAPES))
def test_ledgers_without_any_event_break_no_promise(seed: int, shape: dict[str, Any]) -> None:
    assert check(replace(history(seed, **shape), events=())) == []


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from(SHAPES[:3]))
def test_ledgers_of_all_with_the_events_of_one_break_no_promise(seed: int, shape: dict[str, Any]) -> None:
    whole = of_hosts(history(seed, **shape), 0, 1, 2)
    events = tuple(each for each in whole.events if each.group == 0)
    part = replace(whole, events=events)
    assert check(part) == []
    assert find_gaps(part).events == {1, 2}


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from(SHAPES), here=st.sets(st.integers(0, 2)))
def test_events_of_all_with_some_ledgers_break_no_promise(
    seed: int, shape: dict[str, Any], here: set[int]
) -> None:
    whole = of_hosts(history(seed, **shape), 0, 1, 2)
    part = replace(whole, ledgers={group: whole.ledgers[group] for group in here})
    assert check(part) == []
    assert find_gaps(part).ledgers == {0, 1, 2} - here


def test_a_whole_run_lacks_nothing_and_is_judged() -> None:
    whole = of_hosts(history(3), 0, 1, 2)
    assert not_judged(whole) == []
    done = whole.of(EventKind.ROUND_DONE)[0]
    lost = replace(whole, events=tuple(each for each in whole.events if each is not done))
    assert [each.kind for each in check(lost)] == [ViolationKind.SAMPLE_LOST]


def test_a_part_is_judged_as_far_as_it_goes() -> None:
    part = of_hosts(history(3, kills=0), 0)
    own = next(each for each in part.of(EventKind.ROUND_DONE) if each.group == 0)
    lost = replace(part, events=tuple(each for each in part.events if each is not own))
    assert [(each.kind, each.group) for each in check(lost)] == [(ViolationKind.SAMPLE_LOST, 0)]


def test_sentences() -> None:
    whole = history(3, kills=0)
    (said,) = not_judged(replace(whole, events=()))
    assert said == "events.jsonl is missing: what happened to samples cannot be judged"
    (said,) = not_judged(of_hosts(whole, 1))
    assert said.startswith("there is no ledger of group 0 and 2: ")
    (said,) = not_judged(replace(whole, events=of_hosts(whole, 1).events))
    assert said.startswith("there are no events of group 0 and 2: ")


def test_report_without_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(history(2), tmp_path)
    (tmp_path / "events.jsonl").unlink()
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "samples               not judged" in lines
    assert lines[-2:] == [
        "not judged            events.jsonl is missing: what happened to samples cannot be judged",
        "no broken promise in what can be judged",
    ]


def test_report_of_one_host_of_several() -> None:
    part = of_hosts(history(2), 1)
    report = build_report(part)
    text = format_report(report)
    assert "not judged            there is no ledger of group 0 and 2:" in text
    page = render_html(part, report, text)
    assert "No broken promise in what can be judged." in page
    assert "Not judged: there is no ledger of group 0" in page
