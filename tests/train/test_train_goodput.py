"""Goodput, what each kill cost, and the published measures: by hand, and against another count."""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from goodput_oracle import TICK_S, recount
from simulated_history import History
from test_train_evidence import write
from timed_history import timed

from replica.goodput import Cause, Fate, cause_of
from replica.ledger import EventKind, LedgerLine, Outcome, PhaseSeconds
from train.evidence import timeline as timeline_module
from train.evidence.eras import find_eras
from train.evidence.files import Event, Evidence, read_evidence
from train.evidence.goodput import by_kill, fault_free_step_s, goodput, measures, shares_by_cause
from train.evidence.timeline import Timeline, find_timeline

BEGUN = Event(
    t=0.0,
    kind=EventKind.JOB_STARTED,
    values={"groups": 2, "ranks": 1, "rounds": 2, "mode": "exact", "seed": 0, "steps": 9},
)


def event(t: float, kind: EventKind, group: int, **values: Any) -> Event:
    return Event(t=t, kind=kind, values={"group": group, **values})


def kill(t: float, group: int | None, target: str = "group") -> Event:
    return Event(t=t, kind=EventKind.KILL, values={"group": group, "rank": None, "target": target, "step": 0})


def up(t: float, group: int, life: str = "a") -> Event:
    return event(t, EventKind.GROUP_STARTED, group, incarnation=life)


def line(t: float, group: int, step: int, quorum_id: int = 1, life: str = "a", **values: Any) -> LedgerLine:
    """A step that took a second: 0.1 s for a quorum, 0.6 s of rounds, 0.2 s for the sum, 0.1 s to commit."""
    whole: dict[str, Any] = {
        "outcome": Outcome.COMMITTED, "participants": (0, 1), "rounds": ((0, 0), (1, 1)),
        "seconds": PhaseSeconds(quorum=0.1, compute=0.6, reduce=0.2, commit=0.1, total=1.0),
    }  # fmt: skip
    return LedgerLine(
        t=t, group=group, incarnation=life, step=step, quorum_id=quorum_id, **{**whole, **values}
    )


def made(lines: list[LedgerLine], *events: Event) -> tuple[Evidence, Timeline]:
    ledgers = {group: tuple(line for line in lines if line.group == group) for group in (0, 1)}
    evidence = Evidence(out=Path("run"), ledgers=ledgers, events=tuple(sorted(events, key=lambda e: e.t)))
    return evidence, find_timeline(evidence)


SHAPES: list[dict[str, Any]] = [
    {}, {"keeps": True}, {"kills": 5, "groups": 4, "keeps": True}, {"groups": 9, "rounds": 3, "keeps": True},
    {"mode": "exact", "disasters": 1}, {"mode": "exact", "disasters": 2, "regroups": True, "keeps": True},
]  # fmt: skip
WAYS: list[dict[str, Any]] = [{}, {"outside": True}, {"pauses": True}, {"outside": True, "pauses": True}]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run that was read from files, and what the other count found in them."""

    evidence: Evidence
    again: dict[str, Any]

    def differences(self) -> list[str]:
        """What the account has otherwise than the other count, beyond the resolution of that."""
        account = goodput(self.evidence, find_timeline(self.evidence))
        seconds = {"productive": account["productive_s"], **account["lost_s_by_cause"]}
        again, stretches = self.again["seconds"], self.again["stretches"]
        wrong = [
            f"{cause}: {seconds[cause]} s, {again.get(cause, 0.0)} s"
            for cause in Cause
            if abs(seconds[cause] - again.get(cause, 0.0)) > TICK_S * (stretches[cause] + 2)
        ]
        if abs(account["whole_s"] - self.again["whole_s"]) > TICK_S * (len(account["by_group"]) + 1):
            wrong.append("the whole")
        return wrong


def made_case(shape: dict[str, Any], way: dict[str, Any], seed: int, folder: Path) -> Case:
    write(timed(History(seed, **shape).evidence(), seed, **way), folder)
    for path in (folder / "events.jsonl", folder / "ledger" / "group-0.jsonl"):
        with path.open("a") as file:
            file.write('{"t":1000020.5,"kind":"roun')  # its writer was killed
    return Case(evidence=read_evidence(folder), again=recount(folder))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    chosen = [(shape, way) for shape in SHAPES for way in WAYS]
    return [
        made_case(shape, way, seed, tmp_path_factory.mktemp("run"))
        for seed, (shape, way) in enumerate(chosen)
    ]


def test_a_second_count_of_the_files_finds_the_same(cases: list[Case]) -> None:
    for case in cases:
        assert case.differences() == []
        found = measures(case.evidence, find_eras(case.evidence))
        for name, value in case.again["measures"].items():
            assert found[name] == (None if value is None else pytest.approx(value, abs=1e-4)), name


def test_the_second_count_notices_each_wrong_rule(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause of each phase and fate is exchanged, one at a time, in some of the runs."""
    unseen = []
    for phase, fate in product(timeline_module.PHASES, Fate):
        right = cause_of(phase, fate)
        for wrong in {Cause.QUORUM, Cause.PRODUCTIVE} - {right}:
            mutated = {(phase, fate): wrong}
            monkeypatch.setattr(
                timeline_module, "cause_of", lambda *one, m=mutated: m.get(one) or cause_of(*one)
            )
            if not any(replace(case, evidence=replace(case.evidence)).differences() for case in cases):
                unseen.append((phase, fate, right, wrong))
    assert unseen == []


def test_the_histories_show_every_cause_with_a_share_as_in_real_runs(cases: list[Case]) -> None:
    largest = {
        cause: max(case.again["seconds"].get(cause, 0.0) / case.again["whole_s"] for case in cases)
        for cause in Cause
    }
    assert min(largest.values()) > 0.02, largest
    assert largest[Cause.QUORUM] < 0.4


def test_the_account_of_a_run_adds_up_and_tells_each_group() -> None:
    lines = [line(3, 0, 0), line(3, 1, 0)]
    evidence, timeline = made(
        lines, BEGUN, up(2, 0), up(2, 1), event(4, EventKind.FINISHED, 0, incarnation="a")
    )
    account = goodput(evidence, timeline)
    assert account["whole_s"] == 8.0
    assert account["productive_s"] + sum(account["lost_s_by_cause"].values()) == pytest.approx(8.0)
    assert account["ratio"] == pytest.approx(1.4 / 8)
    assert account["accounted"] == 1.0
    assert account["by_group"]["0"]["productive"] == pytest.approx(0.7)
    assert sum(shares_by_cause(account).values()) == pytest.approx(1.0)
    assert next(iter(shares_by_cause(account))) == "productive"


def test_attempts_that_claim_the_same_time_are_seen() -> None:
    evidence, timeline = made([line(3, 0, 0), line(3.5, 0, 1)], BEGUN, up(2, 0), kill(10, None, "lighthouse"))
    assert goodput(evidence, timeline)["accounted"] == pytest.approx(1 + 0.5 / 20)


def test_nothing_has_no_account() -> None:
    evidence, timeline = made([])
    account = goodput(evidence, timeline)
    assert (account["ratio"], account["whole_s"], account["by_kill"]) == (None, 0.0, [])
    assert shares_by_cause(account) == {}
    assert set(measures(evidence, find_eras(evidence)).values()) == {None}


def with_a_kill(*more: Event) -> tuple[Evidence, Timeline]:
    """Both groups commit at 3 s; group 1 is killed at 3.5 s and commits again at 12 s."""
    ended = PhaseSeconds(quorum=0.1, compute=0.6, reduce=0.3, total=1.0)
    again = PhaseSeconds(quorum=0.2, configure=0.1, compute=0.5, reduce=0.1, commit=0.1, total=1.0)
    lines = [
        line(3, 0, 0),
        line(3, 1, 0),
        line(4, 0, 1, outcome=Outcome.RETRIED, rounds=((0, 0),), seconds=ended),
        line(5, 0, 1, 2, participants=(0,), rounds=((0, 0), (1, 0)), seconds=again),
        line(12, 0, 2, 3),
        line(12, 1, 2, 3, life="b", healed_from=(0,), rounds=((0, 0), (1, 0))),
    ]
    return made(
        lines, BEGUN, up(2, 0), up(2, 1), kill(3.5, 1), event(3.6, EventKind.GROUP_EXITED, 1, code=-9),
        event(5, EventKind.GROUP_LAUNCHED, 1), up(10, 1, "b"), *more,
    )  # fmt: skip


def test_a_kill_costs_the_victim_its_way_back_and_the_others_their_ended_attempt() -> None:
    (row,) = by_kill(*with_a_kill())
    assert (row["t"], row["group"], row["target"]) == (3.5, 1, "group")
    assert row["lost_s_by_cause"] == {
        # Group 0: 0.1 s and 0.2 s; group 1: from its start at 10 s until its attempt, and 0.1 s in it.
        "quorum": pytest.approx(0.3 + 1.1),
        "ended_attempt": pytest.approx(0.3 + 0.5),
        "reconfiguring": pytest.approx(0.1),
        "detection": pytest.approx(1.5),
        "restarting": pytest.approx(5.0),
        "healing": pytest.approx(0.9),
    }
    assert row["others_s"] == pytest.approx(0.7)
    assert row["lost_s"] == pytest.approx(row["others_s"] + row["victim_s"])


def test_the_wait_that_comes_after_an_attempt_which_outlived_the_kill_counts() -> None:
    """The step under way is committed 0.1 s after the kill; only then does the survivor wait."""
    (row,) = by_kill(
        *made([line(3, 0, 0), line(4, 0, 1), line(8, 0, 2, 2)], BEGUN, up(2, 0), up(2, 1), kill(3.9, 1))
    )
    assert row["others_s"] == pytest.approx(0.1 + 3.0 + 0.1)


def test_what_two_kills_cost_is_counted_once() -> None:
    evidence, timeline = with_a_kill(kill(3.7, 0), kill(7, 1))
    rows = by_kill(evidence, timeline)
    lost = goodput(evidence, timeline)["lost_s_by_cause"]
    assert [row["t"] for row in rows] == [3.5, 3.7, 7]
    for cause in ("detection", "ended_attempt"):
        assert sum(row["lost_s_by_cause"].get(cause, 0.0) for row in rows) == pytest.approx(lost[cause])
    assert rows[0]["lost_s_by_cause"]["restarting"] == pytest.approx(2.0)
    assert rows[2]["lost_s_by_cause"]["detection"] == pytest.approx(3.0)


def test_a_kill_of_the_lighthouse_has_no_victim() -> None:
    (row,) = by_kill(*made([line(3, 0, 0), line(6, 0, 1)], BEGUN, up(1, 0), kill(4, None, "lighthouse")))
    assert (row["victim_s"], row["others_s"]) == (0.0, pytest.approx(2.1))
    assert set(row["lost_s_by_cause"]) == {"quorum"}


def test_the_four_measures_of_a_run_with_a_kill() -> None:
    evidence, _ = with_a_kill()
    found = measures(evidence, find_eras(evidence))
    assert found["discarded_steps_per_kill"] == 0.0
    assert found["committed_of_attempted"] == 0.75
    assert found["fault_free_step_s"] is None  # no quorum committed two steps
    assert found["token_rate_of_fault_free"] is None
    assert found["breadth_mean"] == pytest.approx(1.0)


def test_the_rate_without_faults_is_that_of_steps_by_one_quorum_of_all_groups() -> None:
    alone = {"participants": (0,), "rounds": ((0, 0), (1, 0))}
    lines = [
        line(1, 0, 0),
        line(2, 0, 1),
        line(3, 0, 2),
        line(10, 0, 3, 2, **alone),
        line(15, 0, 4, 2, **alone),
    ]
    evidence, _ = made(lines, BEGUN, kill(3.5, 1))
    assert fault_free_step_s(evidence) == 1.0
    # Four steps in 14 s, where four would have done.
    assert measures(evidence, find_eras(evidence))["token_rate_of_fault_free"] == pytest.approx(
        4 / 14, abs=1e-4
    )
