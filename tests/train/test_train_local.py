"""The command line of the local cluster: how it ends, and what it says to bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from train import local
from train.cluster import processes
from train.cluster.commands import ClusterSettings

HERE = Path(__file__).parent


def pretended_lighthouse(settings: ClusterSettings, port: int) -> list[str]:
    return [sys.executable, "-S", str(HERE / "fake_lighthouse.py"), f"127.0.0.1:{port}"]


def pretended_group(settings: ClusterSettings, group: int, lighthouse: str) -> list[str]:
    ranks = ["--nproc-per-node", str(settings.ranks), "--max-restarts", "0"]
    launcher = [sys.executable, "-S", str(HERE / "fake_launcher.py"), *ranks]
    return [*launcher, str(HERE / "fake_trainer.py"), *os.environ.get("TRAINER", "0.03").split()]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Trainers and Lighthouses that only pretend, and a report without a fault."""
    monkeypatch.setattr("train.cluster.lighthouse_child.lighthouse_command", pretended_lighthouse)
    monkeypatch.setattr("train.cluster.supervisor.group_command", pretended_group)
    monkeypatch.setattr("train.cluster.local_cluster.write_report", lambda out: {"violations": []})
    monkeypatch.setattr("train.local.format_report", lambda report: "the report")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("pretended")
def test_a_job_runs_to_its_end_in_a_fresh_folder(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert local.main(["--groups", "2", "--ranks", "1", "--steps", "12", "--job.name", "night"]) == 0
    lines = capfd.readouterr().out.splitlines()
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name.startswith("night-20")
    assert lines[0].startswith(f"run folder {folder}, status on http://127.0.0.1:")
    assert lines[-1] == "the report"
    assert "step 12/12" in lines[-2]


@pytest.mark.usefixtures("pretended")
def test_kills_happen_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER", "0.03 kills-2")
    words = ["--groups", "2", "--steps", "9000", "--kill-at", "5:1", "--kill-at", "6:0", "--kill-rank", "1"]
    assert local.main([*words, "--out", str(tmp_path / "run")]) == 0
    text = (tmp_path / "run" / "events.jsonl").read_text()
    assert text.count('"kind":"kill"') == 2
    assert text.count('"rank":1,"target":"rank"') == 2


@pytest.mark.usefixtures("pretended")
def test_a_storm_hits_every_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER", "0.03 kills-2")
    words = ["--groups", "2", "--ranks", "1", "--steps", "9000", "--kill-every", "0.1"]
    assert local.main([*words, "--out", str(tmp_path / "run")]) == 0
    kills = [
        line for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines() if '"kill"' in line
    ]
    assert any('"group":0' in line for line in kills)
    assert any('"group":1' in line for line in kills)


@pytest.mark.usefixtures("pretended")
def test_a_storm_hits_all_that_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.chaos.LIGHTHOUSE_DOWN_S", (0.0, 0.1))
    monkeypatch.setenv("TRAINER", "0.03 kills-4")
    words = ["--groups", "2", "--ranks", "2", "--steps", "9000", "--kill-every", "0.1"]
    words += ["--kill-targets", "lighthouse,launcher,rank,group", "--out", str(tmp_path / "run")]
    assert local.main(words) == 0
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    kills = [event["target"] for event in events if event["kind"] == "kill"]
    assert set(kills) == {"lighthouse", "launcher", "rank", "group"}


@pytest.mark.usefixtures("pretended")
def test_one_group_can_lose_its_lighthouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.chaos.LIGHTHOUSE_DOWN_S", (0.0, 0.1))
    monkeypatch.setenv("TRAINER", "0.03 kills-1")
    words = ["--groups", "1", "--ranks", "1", "--steps", "9000", "--kill-every", "0.1"]
    assert local.main([*words, "--kill-targets", "lighthouse", "--out", str(tmp_path / "run")]) == 0


@pytest.mark.usefixtures("pretended")
def test_a_run_goes_on_in_its_folder(tmp_path: Path) -> None:
    words = ["--groups", "1", "--ranks", "1", "--out", str(tmp_path / "run")]
    assert local.main([*words, "--steps", "5"]) == 0
    assert local.main([*words, "--steps", "9"]) == 4
    assert local.main([*words, "--steps", "9", "--continue"]) == 0
    text = (tmp_path / "run" / "ledger" / "group-0.jsonl").read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == list(range(9))


@pytest.mark.usefixtures("pretended")
def test_a_broken_promise_shows_in_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "train.cluster.local_cluster.write_report", lambda out: {"violations": [{"kind": "rollback"}]}
    )
    assert local.main(["--groups", "1", "--ranks", "1", "--steps", "3"]) == 1


@pytest.mark.usefixtures("pretended")
def test_a_group_that_must_not_be_restarted_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refusing(*words: Any) -> list[str]:
        return [*pretended_group(*words), "refuse"]

    monkeypatch.setattr("train.cluster.supervisor.group_command", refusing)
    assert local.main(["--groups", "2", "--ranks", "1", "--steps", "3"]) == 4
    error = capfd.readouterr().err
    assert "cannot run: the moon is in the wrong place: wait for another." in error
    assert "Files are in" in error


@pytest.mark.usefixtures("pretended")
def test_standing_still_has_a_limit(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "_STALL_S", 0.3)
    monkeypatch.setenv("TRAINER", "0.9")
    assert local.main(["--groups", "1", "--ranks", "1", "--steps", "3"]) == 1
    assert "no group has committed a step for 0.3 s" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--groups", "0"], "groups is 0"),
        (["--groups", "x"], "--groups: invalid int value"),
        (["--ranks", "0"], "at least 1 rank"),
        (["--ranks", "5"], "whole rounds"),
        (["--steps", "0"], "job.steps"),
        (["--kill-at", "20"], "--kill-at 20: expected STEP:GROUP"),
        (["--kill-at", "500:0"], "between 1 and 199"),
        (["--kill-at", "5:3"], "there is no group 3"),
        (["--kill-every", "-1"], "--kill-every -1"),
        (["--kill-every", "nan"], "--kill-every nan"),
        (["--kill-every", "9", "--groups", "1"], "--groups 2 or more"),
        (["--kill-rank", "2"], "--kill-rank 2"),
        (["--kill-every", "9", "--kill-targets", "rank,host"], "no target 'host'"),
        (["--kill-every", "9", "--kill-targets", "rank", "--kill-rank", "0"], "exclude each other"),
        (["--kill-targets", "rank"], "give --kill-every SECONDS as well"),
        (["--kill-every", "9", "--kill-targets", "lighthouse,rank", "--groups", "1"], "--groups 2 or more"),
        (["--config", "/no/such.toml"], "/no/such.toml"),
        (["--token-file", "/no/token"], "no token file /no/token"),
        (["--save-every", "-1"], "save_every is -1"),
        (["--save-every", "0", "--backstop", "s3://b"], "save_every not 0"),
        (["--continue"], "name its folder with --out"),
        (["--continue", "--out", "full"], "holds no run that could go on"),
        (["--model.dimm", "3"], "model.dimm"),
        (["--model.dim", "three"], "model.dim"),
        (["--frobnicate", "3"], "--frobnicate"),
        (["stray"], "stray"),
        (["--lighthouse-kind", "lamp"], "--lighthouse-kind"),
        (["--mode", "hasty"], "hasty"),
        (["--out", "full"], "--out full is not empty"),
        (["--out", "full/file"], "is not a folder"),
        (["--out", "full/file/run"], "cannot be written"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/file").touch()
    assert local.main(words) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        local.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    kills = ("kill-every", "kill-targets", "kill-at", "kill-rank")
    saves = ("save-every", "backstop", "continue")
    for flag in ("groups", "ranks", "steps", *kills, "seed", "config", "out", *saves):
        assert f"--{flag} " in text
    assert "--section.key" in text


PROGRAM = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import train.cluster.supervisor, train.cluster.lighthouse_child
from test_train_local import pretended_group, pretended_lighthouse
train.cluster.supervisor.group_command = pretended_group
train.cluster.lighthouse_child.lighthouse_command = pretended_lighthouse
from train.local import main
sys.exit(main(["--groups", "2", "--steps", "9000", "--out", sys.argv[1]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_in_good_order(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline().startswith(b"run folder ")
        began_s = time.monotonic()
        program.send_signal(number)
        said = program.stderr.read().decode()
        assert program.wait() == 128 + number
        assert time.monotonic() - began_s < 5
    assert said == f"ended by {number.name}; files are in {out}\n"
    marks = [processes.environment_of(pid).get("HEADWAY_OUT") for pid in processes.parents()]
    assert str(out) not in marks
