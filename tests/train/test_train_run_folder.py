"""The folder of a run: claimed once, taken up again only by the same job."""

import os
from pathlib import Path

import pytest

from replica.errors import UserError
from replica.ledger import EventKind, EventLog
from train.cluster.run_folder import claim, fresh_folder, hold, let_go, take_up

JOB = {"groups": 2, "ranks": 1, "rounds": 4, "mode": "exact", "seed": 0, "steps": 9}


def run_of(out: Path, job: str) -> None:
    with EventLog(out) as events:
        events.write(EventKind.JOB_STARTED, job=job, **JOB)


def test_a_new_folder_is_named_after_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = fresh_folder("night")
    assert folder.parent == tmp_path / "out"
    assert folder.name.startswith("night-20")
    claim(folder)
    assert (folder / "ledger").is_dir()


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    claim(tmp_path / "run")
    with pytest.raises(UserError, match="holds another run"):
        claim(tmp_path / "run")


def test_a_run_is_taken_up_by_its_own_job(tmp_path: Path) -> None:
    run_of(tmp_path, "night")
    take_up(tmp_path, "night")
    with pytest.raises(UserError, match="a run of job night, not of day"):
        take_up(tmp_path, "day")


@pytest.mark.parametrize("text", ["", '{"t": 1, "kind": "quorum"}\n', "torn"])
def test_where_there_is_no_run_none_goes_on(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(UserError, match="holds no run that could go on"):
        take_up(tmp_path, "night")
    with pytest.raises(UserError, match="holds no run that could go on"):
        take_up(tmp_path / "nowhere", "night")


def test_a_folder_is_held_by_one_cluster_at_a_time(tmp_path: Path) -> None:
    held = hold(tmp_path)
    with pytest.raises(UserError, match="is going on: wait for its end"):
        hold(tmp_path)
    inherited = os.dup(held)
    let_go(held)
    let_go(hold(tmp_path))
    os.close(inherited)
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"
