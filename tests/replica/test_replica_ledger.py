"""Ledger and event log: whole lines whatever happens, valid JSON, and what is read is what was written."""

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.table import Limits
from replica.ledger import (
    EVENT_FIELDS,
    MAX_EVENT_BYTES,
    MAX_EVENT_TEXT,
    EventKind,
    EventLog,
    Ledger,
    LedgerLine,
    Outcome,
    PhaseSeconds,
    Reason,
    events_path,
    ledger_path,
    new_incarnation,
)

LINE = LedgerLine(
    t=12.5,
    group=1,
    incarnation="ab",
    step=7,
    quorum_id=3,
    outcome=Outcome.COMMITTED,
    participants=(0, 1),
    rounds=((0, 0), (1, 1)),
    loss=2.5,
    grad_norm=0.5,
    lr=0.001,
    digest="d1",
    healed_from=(0,),
    seconds=PhaseSeconds(quorum=0.1, compute=0.5, total=0.7),
)

counts = st.integers(0, 2**53)
finite = st.floats(allow_nan=False, allow_infinity=False)
optional = st.none() | finite
lines = st.builds(
    LedgerLine,
    t=finite,
    group=counts,
    incarnation=st.text(),
    step=counts,
    quorum_id=st.none() | counts,
    outcome=st.sampled_from(Outcome),
    reason=st.sampled_from(Reason),
    participants=st.lists(counts, max_size=4).map(tuple),
    rounds=st.lists(st.tuples(counts, counts), max_size=4).map(tuple),
    loss=optional,
    grad_norm=optional,
    lr=optional,
    digest=st.none() | st.text(),
    healed_from=st.none() | st.lists(counts, max_size=3).map(tuple),
    seconds=st.builds(PhaseSeconds, quorum=finite, compute=finite, total=finite),
)


def objects(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@given(line=lines)
def test_line_reads_back_as_written(line: LedgerLine) -> None:
    assert LedgerLine.from_json(json.loads(json.dumps(line.to_json(), allow_nan=False))) == line


def test_line_has_the_documented_form() -> None:
    assert LINE.to_json() == {
        "t": 12.5,
        "group": 1,
        "incarnation": "ab",
        "step": 7,
        "quorum_id": 3,
        "outcome": "committed",
        "reason": "none",
        "participants": [0, 1],
        "rounds": [[0, 0], [1, 1]],
        "loss": 2.5,
        "grad_norm": 0.5,
        "lr": 0.001,
        "digest": "d1",
        "healed_from": [0],
        "seconds": {
            "quorum": 0.1, "configure": 0.0, "heal": 0.0, "compute": 0.5, "reduce": 0.0,
            "vote": 0.0, "commit": 0.0, "total": 0.7, "save": 0.0, "script": 0.0,
        },
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_floats_that_are_not_finite_become_null(value: float) -> None:
    raw = replace(LINE, loss=value, grad_norm=value).to_json()
    assert raw["loss"] is None
    assert raw["grad_norm"] is None
    assert LedgerLine.from_json(raw).loss is None


def test_unknown_keys_are_ignored() -> None:
    assert LedgerLine.from_json({**LINE.to_json(), "later": 1}) == LINE


def test_a_ledger_from_before_these_phases_were_told_apart_can_be_read() -> None:
    raw = LINE.to_json()
    for phase in ("configure", "save", "script"):
        del raw["seconds"][phase]
    assert LedgerLine.from_json(raw) == LINE
    del raw["seconds"]["vote"]
    with pytest.raises(ValueError, match="vote"):
        LedgerLine.from_json(raw)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("t", None), ("t", True), ("group", 1.0), ("group", True), ("incarnation", 3), ("step", "7"),
        ("quorum_id", "3"), ("outcome", "maybe"), ("reason", None), ("participants", "01"),
        ("participants", [0, True]), ("rounds", [[0]]), ("rounds", [[0, "a"]]), ("rounds", {"0": 1}),
        ("loss", "low"), ("digest", 5), ("healed_from", 0), ("seconds", None), ("seconds", {"quorum": 1.0}),
    ],
)  # fmt: skip
def test_ill_typed_lines_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a|valid"):
        LedgerLine.from_json({**LINE.to_json(), name: value})


def test_ledger_appends_one_line_per_attempt(tmp_path: Path) -> None:
    with Ledger(tmp_path, 1, "ab") as ledger:
        ledger.append(LINE)
        assert objects(ledger_path(tmp_path, 1)) == [LINE.to_json()]
        ledger.append(replace(LINE, step=8))
    with Ledger(tmp_path, 1, "cd") as ledger:
        ledger.append(replace(LINE, step=9, incarnation="cd"))
    assert [line["step"] for line in objects(tmp_path / "ledger" / "group-1.jsonl")] == [7, 8, 9]


@pytest.mark.parametrize("other", [replace(LINE, group=2), replace(LINE, incarnation="cd")])
def test_ledger_refuses_lines_of_others(tmp_path: Path, other: LedgerLine) -> None:
    with Ledger(tmp_path, 1, "ab") as ledger, pytest.raises(ValueError, match="does not belong"):
        ledger.append(other)


@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ('{"t":1}\n', '{"t":1}\n'), ('{"t":1}\n{"t', '{"t":1}\n{"t\n')]
)
def test_a_torn_line_of_an_earlier_writer_is_ended(tmp_path: Path, before: str, after: str) -> None:
    path = ledger_path(tmp_path, 1)
    path.parent.mkdir()
    path.write_text(before)
    with Ledger(tmp_path, 1, "ab") as ledger:
        ledger.append(LINE)
    text = path.read_text()
    assert text.startswith(after)
    assert json.loads(text.removeprefix(after)) == LINE.to_json()


def test_every_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    with Ledger(tmp_path, 1, "ab") as ledger, EventLog(tmp_path) as events:
        ledger.append(LINE)
        events.write(EventKind.LIGHTHOUSE_UP)
    assert len(writes) == 2
    assert all(data.endswith(b"\n") and data.count(b"\n") == 1 for data in writes)


def no_room(fd: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_missing_from_both_files_is_told_in_the_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog(tmp_path, clock=lambda: 4.5, group=1) as events, Ledger(tmp_path, 1, "ab") as ledger:
        events.tell_gaps_of(ledger.lines)
        with monkeypatch.context() as full:
            full.setattr(os, "write", no_room)
            assert not ledger.append(LINE)
            assert not events.write(EventKind.LIGHTHOUSE_DOWN)
            assert not events.write(EventKind.LIGHTHOUSE_UP)
        assert ledger.append(replace(LINE, step=8))
        assert events.write(EventKind.LIGHTHOUSE_DOWN)
        assert events.write(EventKind.LIGHTHOUSE_UP)
    down, *gaps, up = objects(events_path(tmp_path))
    assert (down["kind"], up["kind"]) == ("lighthouse_down", "lighthouse_up")
    why = {"reason": "No space left on device"}
    lost = {"t": 4.5, "kind": "records_lost", "group": 1} | why
    assert gaps[0] == lost | {"file": "events.jsonl", "lines": 2, "since": 4.5}
    assert gaps[1] == lost | {"file": "ledger/group-1.jsonl", "lines": 1, "since": gaps[1]["since"]}
    assert [line["step"] for line in objects(ledger_path(tmp_path, 1))] == [8]


def test_what_is_missing_is_told_at_the_end_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = EventLog(tmp_path)
    monkeypatch.setattr(os, "write", no_room)
    events.write(EventKind.LIGHTHOUSE_DOWN)
    monkeypatch.undo()
    events.close()
    (lost,) = objects(events_path(tmp_path))
    assert (lost["kind"], lost["file"], lost["lines"]) == ("records_lost", "events.jsonl", 1)


def test_a_gap_that_cannot_be_told_costs_nothing(tmp_path: Path) -> None:
    events_path(tmp_path).symlink_to("/dev/full")
    with EventLog(tmp_path) as events:
        assert not events.write(EventKind.LIGHTHOUSE_DOWN)
        assert not events.write(EventKind.LIGHTHOUSE_UP)


def test_the_largest_quorum_fits_into_an_event(tmp_path: Path) -> None:
    """A Lighthouse takes 1024 groups, with numbers of up to six digits."""
    largest = tuple(range(999_999 - Limits().max_replicas, 999_999))
    with EventLog(tmp_path, group=999_999, rank=1023, incarnation="cafe0001") as events:
        events.write(EventKind.QUORUM, step=10**12, quorum_id=10**12, participants=largest)
        events.write(EventKind.DEATH_SEEN, dead=largest, quorum_id=10**12)
    assert tuple(objects(events_path(tmp_path))[0]["participants"]) == largest


def test_close_may_be_called_twice(tmp_path: Path) -> None:
    ledger, events = Ledger(tmp_path, 1, "ab"), EventLog(tmp_path)
    for log in (ledger, events, ledger, events):
        log.close()
    with pytest.raises(OSError, match="descriptor"):
        ledger.append(LINE)


def test_event_carries_time_source_and_values(tmp_path: Path) -> None:
    with EventLog(tmp_path, clock=lambda: 4.5, group=2, rank=1, incarnation="ab") as events:
        events.write(EventKind.HEAL_FAILED, reason="donor died", seconds=math.nan, tried=(0, 1))
        events.write(EventKind.KILL, group=0, target="rank", step=3)
    first, second = objects(events_path(tmp_path))
    source = {"rank": 1, "incarnation": "ab"}
    assert first == {
        "t": 4.5, "kind": "heal_failed", "group": 2, **source,
        "reason": "donor died", "seconds": None, "tried": [0, 1],
    }  # fmt: skip
    assert second == {"t": 4.5, "kind": "kill", "group": 0, **source, "target": "rank", "step": 3}
    assert events_path(tmp_path).read_text().startswith('{"t":4.5,"kind":')


@pytest.mark.parametrize("kind", [kind for kind in EventKind if EVENT_FIELDS[kind]])
def test_event_without_one_of_its_fields_is_refused(tmp_path: Path, kind: EventKind) -> None:
    gone, *others = sorted(EVENT_FIELDS[kind])
    with EventLog(tmp_path) as events:
        with pytest.raises(ValueError, match=rf"{kind} lacks {gone}$"):
            events.write(kind, **dict.fromkeys(others, 0))
        events.write(kind, **dict.fromkeys(EVENT_FIELDS[kind], 0))
    assert len(objects(events_path(tmp_path))) == 1


def test_every_kind_names_its_fields() -> None:
    assert set(EVENT_FIELDS) == set(EventKind)


def test_texts_that_json_makes_longer_are_cut_further(tmp_path: Path) -> None:
    with EventLog(tmp_path, group=0) as events:
        events.write(EventKind.REFUSED, reason="\N{GRINNING FACE}" * 400, more="\n" * 400, most="\0" * 400)
    (event,) = objects(events_path(tmp_path))
    assert set(event["reason"]) == {"\N{GRINNING FACE}"}


def test_long_texts_are_cut_and_long_events_refused(tmp_path: Path) -> None:
    with EventLog(tmp_path, group=0) as events:
        events.write(EventKind.REFUSED, reason="x" * 10_000)
        with pytest.raises(ValueError, match=f"is over {MAX_EVENT_BYTES} bytes"):
            events.write(EventKind.REFUSED, reason="", numbers=list(range(10_000)))
    (event,) = objects(events_path(tmp_path))
    assert event["reason"] == "x" * MAX_EVENT_TEXT
    assert events_path(tmp_path).stat().st_size < MAX_EVENT_BYTES


def test_events_of_many_threads_and_writers_stay_whole(tmp_path: Path) -> None:
    def write(log: EventLog, writer: int) -> None:
        for number in range(50):
            log.write(EventKind.REFUSED, reason=f"{writer}-{number}", padding="x" * (number * 7))

    with EventLog(tmp_path, group=0) as one, EventLog(tmp_path, group=1) as other:
        threads = [
            threading.Thread(target=write, args=(log, i)) for i, log in enumerate([one, one, other, other])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reasons = [event["reason"] for event in objects(events_path(tmp_path))]
    for writer in range(4):
        own = [reason for reason in reasons if reason.startswith(f"{writer}-")]
        assert own == [f"{writer}-{number}" for number in range(50)]


def test_killed_writer_tears_its_last_line_at_most(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from replica.ledger import EventKind, EventLog\n"
        "events = EventLog(Path(sys.argv[1]), group=0)\n"
        "print('writing', flush=True)\n"
        "while True: events.write(EventKind.REFUSED, reason='x' * 100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while events_path(tmp_path).stat().st_size < 100_000:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    # The kernel may break one write off at the border of a page; nothing before it is touched.
    *whole, _ = events_path(tmp_path).read_text().split("\n")
    assert len(whole) > 0
    assert {json.loads(line)["reason"] for line in whole} == {"x" * 100}


def test_incarnations_have_short_names_of_their_own() -> None:
    names = {new_incarnation() for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"[0-9a-f]{8}", name) for name in names)
