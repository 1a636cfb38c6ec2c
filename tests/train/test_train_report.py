"""The report: each figure from evidence made for it, the printed form, the files and the exit codes."""

import json
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from simulated_history import History, Phase, history
from test_train_evidence import write

from replica.ledger import EventKind, LedgerLine, Outcome, PhaseSeconds
from train.evidence.figures import quantiles
from train.evidence.files import Event, Evidence
from train.report import build_report, format_report, main, run_names, write_report

CONTRACT = {
    "steps_committed", "kills", "steps_discarded", "steps_replayed", "steps_recommitted", "rounds_recomputed",
    "samples_lost", "samples_repeated", "digests_agree", "final_digest", "final_loss", "survivor_stall_s",
    "rejoin_s", "heal_s", "heal_mb", "heal_mb_per_s", "breadth_mean", "goodput", "backstop_saves",
    "backstop_reads", "disaster_restores", "steps_restored_over", "saves_failed",
    "wall_s", "versions", "measures",
}  # fmt: skip
ADDED = {
    "save_s", "save_blocked_s", "disaster_s", "first_loss", "heals", "violations", "out", "survival",
    "last_signs", "deaths", "not_judged",
}  # fmt: skip


def line(t: float, group: int, step: int, quorum_id: int = 1, **values: Any) -> LedgerLine:
    default: dict[str, Any] = {
        "incarnation": f"life{group}", "outcome": Outcome.COMMITTED, "participants": (0, 1),
        "rounds": ((0, 0), (1, 1)), "loss": 5.0 - step, "digest": f"d{step}",
        "seconds": PhaseSeconds(quorum=0.1, compute=0.5, reduce=0.2, vote=0.05, commit=0.1, total=1.0),
    }  # fmt: skip
    return LedgerLine(t=t, group=group, step=step, quorum_id=quorum_id, **{**default, **values})


def event(t: float, kind: EventKind, **values: Any) -> Event:
    return Event(t=t, kind=kind, values=values)


def kill(t: float, group: int | None, target: str = "group") -> Event:
    return event(t, EventKind.KILL, group=group, rank=None, target=target, step=0)


def start(t: float, group: int, incarnation: str) -> Event:
    return event(t, EventKind.GROUP_STARTED, group=group, incarnation=incarnation)


def evidence(lines: list[LedgerLine], *events: Event) -> Evidence:
    groups = sorted({line.group for line in lines})
    ledgers = {group: tuple(line for line in lines if line.group == group) for group in groups}
    return Evidence(out=Path("run"), ledgers=ledgers, events=events)


def report(lines: list[LedgerLine], *events: Event) -> dict[str, Any]:
    return build_report(evidence(lines, *events))


@pytest.mark.parametrize("seed", range(3))
def test_report_has_the_keys_of_the_contract(seed: int) -> None:
    found = build_report(history(seed))
    assert set(found) == CONTRACT | ADDED
    assert set(found["survivor_stall_s"]) == {"p50", "p99", "max"}
    assert set(found["rejoin_s"]) == set(found["heal_s"]) == {"p50", "max"}
    goodput = found["goodput"]
    assert {"ratio", "lost_s_by_cause", "by_kill", "by_group"} <= set(goodput)
    assert goodput["ratio"] * goodput["whole_s"] + sum(goodput["lost_s_by_cause"].values()) == pytest.approx(
        3 * found["wall_s"], rel=0.01
    )
    assert {"discarded_steps_per_kill", "committed_of_attempted", "breadth_mean"} <= set(found["measures"])
    assert set(found["versions"]) == {"python", "torch", "torchft", "headway"}
    json.dumps(found, allow_nan=False)


def test_clean_history_with_kills_reports_no_loss() -> None:
    made = History(7, phase=Phase.MID_ROUNDS)
    found = build_report(made.evidence())
    assert found["steps_committed"] == 14
    assert found["kills"] == 3
    assert found["steps_discarded"] == 3
    assert found["steps_replayed"] == found["steps_recommitted"] == 0
    assert found["samples_lost"] == found["samples_repeated"] == 0
    assert found["digests_agree"] is True
    assert found["first_loss"] == 5.5
    assert found["final_loss"] == pytest.approx(5.5 / 14)
    assert found["final_digest"] == made.state
    assert found["rounds_recomputed"] > 0
    assert found["heals"] == 3
    assert found["violations"] == []


def test_kept_rounds_leave_only_the_lost_ones_to_compute_again() -> None:
    dropped = build_report(history(7, phase=Phase.BEFORE_VOTE, kills=1))
    kept = build_report(history(7, phase=Phase.BEFORE_VOTE, kills=1, keeps=True))
    assert dropped["rounds_recomputed"] == 6
    assert kept["rounds_recomputed"] == 2
    assert kept["steps_discarded"] == 0


def test_recommitted_step_is_counted_in_fast_mode_only() -> None:
    how: dict[str, Any] = {"kills": 1, "phase": Phase.ONLY_VICTIM_COMMITS}
    fast, exact = build_report(history(3, **how)), build_report(history(3, mode="exact", **how))
    assert (fast["steps_recommitted"], fast["steps_replayed"]) == (1, 0)
    assert (exact["steps_recommitted"], exact["steps_replayed"]) == (0, 0)


def test_replays_are_counted() -> None:
    again = [line(1, 0, 0), line(2, 0, 1), line(3, 0, 0, quorum_id=2)]
    assert report(again)["steps_replayed"] == 1
    assert report([line(1, 0, 0), line(2, 0, 0)])["steps_replayed"] == 1
    assert report([line(1, 0, 0), line(1, 1, 0), line(2, 0, 1)])["steps_replayed"] == 0


def test_discarded_attempts_count_once_and_only_when_work_was_lost() -> None:
    lost = {"outcome": Outcome.DISCARDED, "rounds": ((0, 0),)}
    lines = [line(1, 0, 0, 1, **lost), line(1, 1, 0, 1, **lost), line(2, 0, 0, 2, **lost), line(2, 1, 0, 2)]
    assert report(lines)["steps_discarded"] == 1
    without_rounds = [line(1, 0, 0, 1, outcome=Outcome.DISCARDED, rounds=()), line(2, 0, 0, 2)]
    assert report(without_rounds)["steps_discarded"] == 0


def test_digests_that_were_never_computed_do_not_agree() -> None:
    assert report([line(1, 0, 0, digest=None)])["digests_agree"] is None
    assert report([line(1, 0, 0), line(1, 1, 0)])["digests_agree"] is True
    assert report([line(1, 0, 0), line(1, 1, 0, digest="x")])["digests_agree"] is False


def test_stall_is_the_wait_for_another_group_less_a_typical_step() -> None:
    lines = [line(10, 0, 0), line(10, 1, 0), line(14.5, 1, 1, 2), line(14.6, 2, 1, 2), line(15.2, 1, 2, 2)]
    assert report(lines, kill(10.5, 0))["survivor_stall_s"] == {"p50": 3.0, "p99": 3.0, "max": 3.0}
    assert report(lines, kill(14.2, 0))["survivor_stall_s"]["max"] == 0.0
    both = report(lines, kill(10.5, 0), kill(14.2, 0))
    assert both["survivor_stall_s"] == {"p50": 1.5, "p99": 3.0, "max": 3.0}


def test_stall_after_an_attempt_that_outlived_the_kill_counts() -> None:
    """The step under way is committed 0.1 s after the kill; the survivors wait then."""
    lines = [line(9, 1, 0), line(10, 1, 1), line(10.001, 2, 1), line(14, 1, 2, quorum_id=2)]
    members = event(
        1, EventKind.QUORUM, group=1, incarnation="life1", step=0, quorum_id=1, participants=[0, 1]
    )
    assert report(lines, members, kill(9.9, 0))["survivor_stall_s"]["max"] == 3.0


def test_joiner_killed_outside_any_quorum_stalls_nobody() -> None:
    lines = [line(9, 1, 0, participants=(1,)), line(10, 1, 1, participants=(1,)), line(30, 1, 2)]
    assert report(lines, kill(9.9, 0))["survivor_stall_s"]["max"] == 0.0


def test_kills_that_no_survivor_outlived_have_no_stall() -> None:
    nothing = {"p50": None, "p99": None, "max": None}
    lines = [line(10, 0, 0), line(10, 1, 0)]
    assert report(lines, kill(11, 0))["survivor_stall_s"] == nothing
    assert report(lines, kill(9, None, "lighthouse"))["survivor_stall_s"] == nothing


def test_rejoin_counts_from_the_kill_to_a_commit_of_a_new_life() -> None:
    old = line(10.1, 0, 0, incarnation="old")
    new = line(17, 0, 4, quorum_id=3, incarnation="new")
    begun = start(1, 0, "old"), kill(10, 0), start(14, 0, "new")
    assert report([old, new], *begun)["rejoin_s"] == {"p50": 7.0, "max": 7.0}
    assert report([old], *begun)["rejoin_s"] == {"p50": None, "max": None}


def test_heal_is_as_slow_as_its_slowest_rank() -> None:
    source = {"group": 1, "incarnation": "new", "step": 4, "healed_from": 0}
    heals = [
        event(5, EventKind.HEAL, **source, rank=0, bytes=3_000_000, seconds=1.0),
        event(5, EventKind.HEAL, **source, rank=1, bytes=5_000_000, seconds=2.0),
    ]
    found = report([line(10, 0, 0)], *heals)
    assert found["heals"] == 1
    assert found["heal_s"] == {"p50": 2.0, "max": 2.0}
    assert found["heal_mb_per_s"] == 4.0
    assert found["heal_mb"] == {"p50": 8.0, "max": 8.0}
    assert report([line(10, 0, 0)])["heal_mb_per_s"] is None


def test_breadth_is_the_share_of_groups_alive_that_took_part() -> None:
    alive = [start(1, 0, "life0"), start(1, 1, "life1")]
    whole, half = line(2, 0, 0), line(5, 0, 1, participants=(0,), rounds=((0, 0), (1, 0)))
    assert report([whole, half], *alive)["breadth_mean"] == 0.75
    assert report([whole, half], *alive, kill(4, 1))["breadth_mean"] == 1.0
    assert report([whole, half], *alive, kill(4, 1), start(4.5, 1, "new"))["breadth_mean"] == 0.75
    assert report([])["breadth_mean"] is None


def test_backstop_is_counted_from_its_events() -> None:
    source = {"group": 0, "incarnation": "life0", "step": 1, "save": "a", "digest": None, "reason": "full"}
    made = [event(0, EventKind.SAVE, **source, seconds=3.0, blocked_s=blocked_s) for blocked_s in (0.1, 0.3)]
    others = [event(0, kind, **source) for kind in (EventKind.SAVE_FAILED, EventKind.BACKSTOP_READ)]
    found = report([line(1, 0, 0)], *made, *others)
    assert (found["backstop_saves"], found["saves_failed"], found["backstop_reads"]) == (2, 1, 1)
    assert found["save_s"] == {"p50": 3.0, "max": 3.0}
    assert found["save_blocked_s"] == {"p50": 0.2, "max": 0.3}
    assert (
        "saves                 2, 1 FAILED (training stood still: p50 200.0 ms, max 300.0 ms)"
        in format_report(found)
    )


def disaster(*, mode: str = "exact") -> Evidence:
    """Two groups die at t = 4 after step 3; one of them reads the save of step 2 and goes on."""
    lines = [line(step, group, step) for group in (0, 1) for step in (0, 1, 2, 3)]
    lines += [
        line(t, 0, step, 9, incarnation="new", participants=(0,)) for t, step in ((10, 2), (11, 3), (12, 4))
    ]
    read = event(9, EventKind.BACKSTOP_READ, group=0, incarnation="new", step=2, save="a", digest="d1")
    job = {"groups": 2, "ranks": 1, "rounds": 2, "mode": mode, "seed": 0, "steps": 5}
    begun = [start(0, 0, "life0"), start(0, 1, "life1")]
    killed = [kill(4, 0), kill(4, 1)]
    return evidence(lines, event(0, EventKind.JOB_STARTED, **job), *begun, *killed, start(8, 0, "new"), read)


def test_a_disaster_is_told_apart_from_all_else() -> None:
    found = build_report(disaster())
    assert (found["disaster_restores"], found["backstop_reads"], found["steps_restored_over"]) == (1, 1, 2)
    assert (found["steps_committed"], found["steps_replayed"], found["steps_recommitted"]) == (5, 0, 0)
    assert found["digests_agree"]
    assert found["final_digest"] == "d4"
    assert found["rounds_recomputed"] == 0
    assert found["survivor_stall_s"]["max"] is None
    assert found["disaster_s"] == {"p50": 7.0, "max": 7.0}
    assert found["rejoin_s"]["max"] is None
    said = "disaster restores     1, 2 steps computed again, without a commit p50 7.00 s, max 7.00 s"
    assert said in format_report(found)
    assert build_report(disaster(mode="fast"))["steps_recommitted"] == 0


def test_rounds_that_a_disaster_took_back_are_not_counted_as_those_of_a_death() -> None:
    found = build_report(history(7, kills=0, disasters=1))
    assert found["steps_restored_over"] > 0
    assert found["rounds_recomputed"] == 0


def test_an_outcome_counts_as_far_as_the_job_came_after_the_disaster() -> None:
    whole = disaster()
    short = replace(whole, ledgers={**whole.ledgers, 0: whole.ledgers[0][:5]})
    found = build_report(short)
    assert (found["steps_committed"], found["final_digest"], found["steps_restored_over"]) == (3, "d2", 1)


def test_quantiles_by_nearest_rank() -> None:
    values = [float(value) for value in range(1, 201)]
    assert quantiles(values, "p50", "p99", "max") == {"p50": 100.5, "p99": 198.0, "max": 200.0}
    assert quantiles([], "p50") == {"p50": None}


def test_violations_are_in_the_report_and_shown_a_few_of_each_kind() -> None:
    clean = history(1, kills=0)
    broken = replace(clean, events=tuple(e for e in clean.events if e.kind is not EventKind.ROUND_DONE))
    found = build_report(broken)
    assert found["samples_lost"] == len(found["violations"]) == 14 * 6
    first = found["violations"][0]
    assert (first["kind"], first["group"], first["step"]) == ("sample_lost", 0, 0)
    assert first["text"] == "round 0 of step 0 was not run by group 0, which is named for it"
    shown = [row for row in format_report(found).splitlines() if "sample_lost" in row]
    assert len(shown) == 4
    assert shown[-1] == "  sample_lost: 81 more in report.json"


def test_printed_report() -> None:
    found = build_report(history(7, phase=Phase.MID_ROUNDS)) | {
        "wall_s": 12.3, "rounds_recomputed": 18, "out": "out/run", "rejoin_s": {"p50": 3.0, "max": 4.25},
        "survivor_stall_s": {"p50": 0.04, "p99": 0.1, "max": 0.1},
        "heal_mb": {"p50": 3.2, "max": 4.0}, "heal_mb_per_s": 12.34,
        "goodput": {
            "ratio": 0.4, "productive_s": 40.0, "whole_s": 100.0,
            "lost_s_by_cause": {"ended_attempt": 5.5, "restarting": 30.0, "quorum": 0.04, "save": 0.1},
            "by_kill": [{"lost_s": 4.0}, {"lost_s": 12.0}, {"lost_s": 20.0}],
        },
        "measures": {
            "discarded_steps_per_kill": 1.0, "committed_of_attempted": 0.824,
            "token_rate_of_fault_free": None, "breadth_mean": 0.98,
        },
    }  # fmt: skip
    assert format_report(found) == (
        "steps committed       14 in 12 s\n"
        "kills survived        3\n"
        "steps replayed        0\n"
        "steps discarded       3, rounds computed again 18\n"
        "samples               0 lost, 0 repeated\n"
        "state of all groups   equal, bit for bit, after every step that both committed\n"
        "loss                  first 5.500, final 0.393\n"
        "survivors stalled     p50 0.04 s, p99 0.10 s, max 0.10 s\n"
        "killed group back in  p50 3.00 s, max 4.25 s\n"
        "heals from peers      3 (p50 0.50 s, max 0.50 s, 3.2 MB at 12.3 MB/s)\n"
        "goodput               40.0% of all groups' time was productive\n"
        "lost to               restarting 30.0%, ended attempt 5.5%, save 0.1%\n"
        "cost of a kill        1.00 steps discarded, p50 12.00 s, max 20.00 s of all groups' time\n"
        "attempts committed    82.4%\n"
        "tokens per second     an unknown share of the rate without faults\n"
        "groups taking part    98.0% of those alive\n"
        "checkpoint reads      0\n"
        "files                 out/run\n"
        "no broken promise"
    )


def test_printed_report_of_a_run_that_did_nothing() -> None:
    text = format_report(report([]))
    assert "loss                  first unknown, final unknown" in text
    assert "state of all groups   not compared: no digests" in text
    assert "heals from peers      0" in text
    assert "BROKEN PROMISES: 1\n  nothing_committed: no group committed any step" in text


def test_report_is_written_whole(tmp_path: Path) -> None:
    write(history(2), tmp_path)
    (tmp_path / "report.json").write_text("an old one")
    found = write_report(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text()) == found
    assert sorted(path.name for path in tmp_path.glob("*report*")) == ["report.html", "report.json"]
    assert format_report(found).splitlines()[0] in (tmp_path / "report.html").read_text()
    assert found["out"] == str(tmp_path)


def test_command_prints_reports_and_tells_of_violations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    clean = history(2)
    write(clean, good)
    write(replace(clean, ledgers={0: clean.ledgers[0][2:]}), bad)
    assert main([str(good)]) == 0
    assert capsys.readouterr().out.endswith("no broken promise\n")
    assert not (tmp_path / "comparison.html").exists()
    assert main([str(good), str(bad)]) == 1
    output = capsys.readouterr().out
    assert output.endswith(f"\n\ncomparison            {tmp_path / 'comparison.html'}\n")
    assert "2 runs side by side" in (tmp_path / "comparison.html").read_text()
    assert output.count("steps committed") == 2
    assert "BROKEN PROMISES" in output


def test_comparison_goes_where_it_is_told(tmp_path: Path) -> None:
    write(history(2), tmp_path / "run")
    assert main([str(tmp_path / "run"), "--comparison", str(tmp_path / "page.html")]) == 0
    assert "run" in (tmp_path / "page.html").read_text()


def test_a_page_into_no_folder_is_refused_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(history(2), tmp_path / "run")
    assert main([str(tmp_path / "run"), "--comparison", str(tmp_path / "no" / "page.html")]) == 4
    said = capsys.readouterr()
    assert said.err == f"error: there is no folder {tmp_path / 'no'} for --comparison; make it first\n"
    assert said.out == ""


@pytest.mark.parametrize("words", [[], ["run", "--surprise"]])
def test_words_that_are_not_understood_get_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 4
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.endswith("; see python -m train.report --help\n")
    assert said.count("\n") == 1


def test_runs_get_names_of_their_own() -> None:
    paths = [Path("/a/one/run"), Path("/a/two/run"), Path("/b/three")]
    assert run_names(paths) == ["one-run", "two-run", "three"]
    assert run_names([Path("/a/run")]) == ["run"]


def test_a_run_that_was_killed_as_a_whole_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything died at one moment: no word of any end, and last lines that are torn."""
    whole = history(5, kills=0)
    cut_t = whole.ledgers[0][8].t
    ledgers = {
        group: tuple(each for each in lines if each.t < cut_t) for group, lines in whole.ledgers.items()
    }
    events = tuple(each for each in whole.events if each.t < cut_t)
    write(replace(whole, ledgers=ledgers, events=events), tmp_path)
    for path in (tmp_path / "events.jsonl", tmp_path / "ledger" / "group-0.jsonl"):
        with path.open("a") as file:
            file.write('{"t":1000020.5,"kind":"round_d')
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "steps committed       8 in" in printed
    for group in range(3):
        said = "no word of an end: it still runs, or died with whoever would have told"
        assert f"group {group} at the end    {said}; it committed step 7 at " in printed
    assert "had finished rounds" in printed
    found = json.loads((tmp_path / "report.json").read_text())
    assert [one["ending"] for one in found["last_signs"]] == ["untold"] * 3
    assert "at the end" not in format_report(build_report(whole))


@pytest.mark.parametrize(("code", "told"), [(0, False), (3, True)])
def test_groups_that_ended_well_need_no_word(code: int, told: bool) -> None:
    gone = event(2, EventKind.GROUP_EXITED, group=0, code=code)
    text = format_report(report([line(1, 0, 0)], start(0, 0, "life0"), gone))
    assert ("group 0 at the end    ended with code 3 at 2.0 s; it committed step 0" in text) is told


def test_command_refuses_a_missing_folder_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert main([str(missing)]) == 4
    text = capsys.readouterr().err
    assert text == f"error: there is no folder {missing}; name the --out folder of a run\n"


def test_command_says_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(history(2), tmp_path)
    (tmp_path / "report.json").mkdir()
    assert main([str(tmp_path)]) == 4
    assert capsys.readouterr().err == f"error: cannot write {tmp_path / 'report.json'}: Is a directory\n"
    assert not list(tmp_path.glob(".*"))


def test_the_cost_grows_with_the_run_and_not_with_its_square() -> None:
    """1500 kills in 4000 steps. A generous bound: about 2 s of processor time on a slow core."""
    made = history(1, steps=4000, kills=1500, mode="exact", keeps=True, disasters=1)
    begun_s = process_time()
    found = build_report(made)
    assert found["kills"] > 1400
    assert process_time() - begun_s < 20
