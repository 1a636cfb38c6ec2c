"""Reading evidence: what was written comes back, and every damaged line is named."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_history import history

from replica.errors import UserError
from replica.ledger import EventKind, EventLog, Ledger, events_path, ledger_path
from train.evidence.files import Damage, Event, Evidence, Job, RoundDone, read_evidence

ROUND = {"step": 3, "quorum_id": 2, "group": 1, "incarnation": "ab", "round": 5, "input_xxh64": "ff"}
JOB = {"groups": 3, "ranks": 2, "rounds": 6, "mode": "fast", "seed": 0, "steps": 20}


def write(evidence: Evidence, out: Path) -> None:
    """Write a simulated history down as a run would have."""
    for group, lines in evidence.ledgers.items():
        for line in lines:
            with Ledger(out, group, line.incarnation) as ledger:
                ledger.append(line)
    times = iter([event.t for event in evidence.events])
    with EventLog(out, clock=lambda: next(times)) as log:
        for event in evidence.events:
            log.write(event.kind, **event.values)


def event_text(kind: str, **values: Any) -> str:
    return json.dumps({"t": 1.0, "kind": kind, **values}, separators=(",", ":")) + "\n"


def events_of(tmp_path: Path, text: str) -> Evidence:
    events_path(tmp_path).write_text(text)
    return read_evidence(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_history_comes_back_as_written(tmp_path: Path, seed: int) -> None:
    written = history(seed)
    write(written, tmp_path)
    read = read_evidence(tmp_path)
    assert read.ledgers == written.ledgers
    assert [(e.t, e.kind, e.values) for e in read.events] == [(e.t, e.kind, e.values) for e in written.events]
    assert read.damage == ()
    assert read.out == tmp_path


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_file_cut_anywhere_loses_its_last_line_only(data: st.DataObject, tmp_path_factory: Any) -> None:
    out = tmp_path_factory.mktemp("run")
    write(history(1, kills=0, steps=7), out)
    path = data.draw(st.sampled_from([events_path(out), ledger_path(out, 2)]))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    read = read_evidence(out)
    kept = read.events if path == events_path(out) else read.ledgers[2]
    assert read.damage == ()
    # A line that lacks only its line end is whole.
    assert len(kept) in (whole[:cut].count(b"\n"), whole[:cut].count(b"\n") + 1)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"t":1,"ki\n', "not a whole line of JSON"),
        ("[1]\n", "not a JSON object"),
        (event_text("surprise"), "'surprise' is not a valid EventKind"),
        ('{"t":1}\n', "'None' is not a valid EventKind"),
        (event_text("save", group=0), "event save lacks blocked_s, bytes, incarnation, save, seconds, step"),
        ('{"t":"now","kind":"lighthouse_up"}\n', "t of event lighthouse_up is not a number"),
        (event_text("round_done", **{**ROUND, "step": "3"}), "step of event round_done is not an integer"),
        (
            event_text("job_started", **{**JOB, "groups": None}),
            "groups of event job_started is not an integer",
        ),
        (b"\xff\xfe\n".decode("latin1"), "not a whole line of JSON"),
    ],
)
def test_line_that_cannot_be_read_is_named(tmp_path: Path, line: str, why: str) -> None:
    events_path(tmp_path).write_bytes((event_text("lighthouse_up") + line).encode("latin1"))
    with events_path(tmp_path).open("a") as file:
        file.write(event_text("lighthouse_down"))
    read = read_evidence(tmp_path)
    assert [event.kind for event in read.events] == [EventKind.LIGHTHOUSE_UP, EventKind.LIGHTHOUSE_DOWN]
    assert read.damage == (Damage(file="events.jsonl", line=2, why=why),)


def test_whole_line_glued_to_a_torn_one_is_not_lost(tmp_path: Path) -> None:
    read = events_of(
        tmp_path, '{"t":1,"kind":"ligh' + event_text("lighthouse_up") + event_text("lighthouse_down")
    )
    assert [event.kind for event in read.events] == [EventKind.LIGHTHOUSE_UP, EventKind.LIGHTHOUSE_DOWN]
    assert read.damage == (Damage(file="events.jsonl", line=1, why="not a whole line of JSON"),)


def test_damaged_ledger_line_is_named(tmp_path: Path) -> None:
    write(history(1, kills=0), tmp_path)
    path = ledger_path(tmp_path, 1)
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first[:40] + "\n", second.replace('"group":1', '"group":2'), *rest]))
    read = read_evidence(tmp_path)
    assert read.damage == (
        Damage(file="ledger/group-1.jsonl", line=1, why="not a whole line of JSON"),
        Damage(file="ledger/group-1.jsonl", line=2, why="a line of group 2 in the ledger of group 1"),
    )
    assert len(read.ledgers[1]) == len(rest)


def test_ledgers_are_found_by_name_and_sorted_by_number(tmp_path: Path) -> None:
    write(history(1, groups=11, kills=0), tmp_path)
    (tmp_path / "ledger" / "group-x.jsonl").write_text("not ours")
    assert list(read_evidence(tmp_path).ledgers) == list(range(11))


def test_missing_or_empty_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nowhere; name the --out folder"):
        read_evidence(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds neither ledger nor events"):
        read_evidence(tmp_path)


def test_events_alone_are_evidence(tmp_path: Path) -> None:
    read = events_of(tmp_path, event_text("job_started", **{**JOB, "rounds": None, "steps": None}))
    assert read.lines == ()
    assert read.job == Job(groups=3, ranks=2, rounds=None, mode="fast", steps=None, restarts_in_place=False)


def test_typed_views(tmp_path: Path) -> None:
    kill = {"group": 1, "rank": None, "step": 3}
    text = (
        event_text("job_started", **JOB, max_restarts=3)
        + event_text("round_done", **ROUND, rank=0)
        + event_text("kill", **kill, target="lighthouse")
        + event_text("kill", **kill, target="rank")
    )
    read = events_of(tmp_path, text)
    assert read.job == Job(groups=3, ranks=2, rounds=6, mode="fast", steps=20, restarts_in_place=True)
    done = RoundDone(step=3, quorum_id=2, group=1, incarnation="ab", round=5, input_xxh64="ff")
    assert read.rounds_done == (done,)
    assert [event.values["target"] for event in read.deaths] == ["rank"]
    assert [event.kind for event in read.of(EventKind.KILL)] == [EventKind.KILL] * 2


def test_fields_of_another_type_read_as_absent() -> None:
    event = Event(t=1.0, kind=EventKind.KILL, values={"group": "one", "rank": True, "bytes": "many", "s": 2})
    assert event.group is None
    assert event.incarnation is None
    assert event.integer("rank") is None
    assert event.number("bytes") == 0.0
    assert event.number("s") == 2.0
