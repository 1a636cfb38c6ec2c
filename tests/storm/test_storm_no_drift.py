"""The default job, killed every few seconds or not, with one group or four: one final digest."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.evidence.files import read_evidence
from train.evidence.history import commits

pytestmark = [pytest.mark.storm, pytest.mark.timeout(2400)]
STEPS = 60
RUNS = {
    "three groups with kills": ["--groups", "3", "--kill-every", "4"],
    "three groups": ["--groups", "3"],
    "one group": ["--groups", "1"],
    "four groups": ["--groups", "4"],
}


def digests(out: Path) -> dict[int, set[str | None]]:
    found: dict[int, set[str | None]] = {}
    for line in commits(read_evidence(out).lines):
        found.setdefault(line.step, set()).add(line.digest)
    return found


def test_every_run_of_the_default_job_ends_with_the_same_bits(
    tmp_path: Path, judge: Callable[[Path, str], dict[str, Any]]
) -> None:
    reports = {}
    for number, (title, words) in enumerate(RUNS.items()):
        out = tmp_path / f"run-{number}"
        command = [sys.executable, "-m", "train.local", "--ranks", "2", "--steps", str(STEPS), *words]
        with (tmp_path / f"run-{number}.log").open("w") as log:
            subprocess.run([*command, "--out", str(out)], stdout=log, check=True, timeout=1200)
        reports[title] = judge(out, f"{title}, {STEPS} steps")

    killed = reports["three groups with kills"]
    assert killed["kills"] >= 3
    for report in reports.values():
        assert report["steps_committed"] == STEPS
        assert (report["steps_discarded"], report["steps_recommitted"]) == (0, 0)
    assert {report["final_digest"] for report in reports.values()} == {killed["final_digest"]}
    # Not only the last: each step has one digest, the same in all runs.
    first, *others = (digests(tmp_path / f"run-{number}") for number in range(len(RUNS)))
    assert all(len(found) == 1 for found in first.values())
    assert others == [first] * len(others)
