"""A whole cluster is killed by SIGKILL in mid-run, and its files alone tell what happened."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from train.report import main

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]
ROOT = Path(__file__).parents[2]


def test_a_run_of_which_everything_was_killed_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = [
        *(sys.executable, "-m", "train.local", "--groups", "2", "--ranks", "1", "--steps", "100000"),
        *("--config", str(ROOT / "train" / "configs" / "tiny.toml"), "--out", str(out)),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "loss" in line:  # steps are being committed
                break
        os.kill(process.pid, signal.SIGKILL)

    assert main([str(out)]) == 0
    printed = capsys.readouterr().out
    assert "no broken promise" in printed
    assert printed.count(" at the end    no word of an end: ") == 2
    report = json.loads((out / "report.json").read_text())
    assert report["steps_committed"] > 0
    for last in report["last_signs"]:
        assert last["ending"] == "untold"
        assert last["steps"] > 0
        assert "it committed step " in last["said"]
    assert "The last of each group" in (out / "report.html").read_text()
