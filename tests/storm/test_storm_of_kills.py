"""Minutes of kills of everything there is: groups, single ranks, launchers and the Lighthouse."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.storm, pytest.mark.timeout(1200)]
KILL_EVERY_S = 5.0
TARGETS = {"group", "rank", "launcher", "lighthouse"}
# Far above any pause seen, far below the timeouts of collectives: nobody may sit one of them out.
LONGEST_PAUSE_S = 60.0


def events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def longest_pause_s(out: Path) -> float:
    """Seconds of the longest time in which no group committed a step."""
    lines = [line for path in (out / "ledger").glob("*.jsonl") for line in path.read_text().splitlines()]
    commits = sorted(entry["t"] for entry in map(json.loads, lines) if entry["outcome"] == "committed")
    return max(after - before for before, after in pairwise(commits))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_all_kinds_of_kills(
    seed: int,
    storm_s: float,
    tiny: Path,
    tmp_path: Path,
    judge: Callable[[Path, str], dict[str, Any]],
) -> None:
    out = tmp_path / "run"
    words = ["--groups", "3", "--ranks", "2", "--steps", "1000000", "--seed", str(seed), "--out", str(out)]
    words += ["--config", str(tiny), "--kill-every", str(KILL_EVERY_S), "--kill-targets", ",".join(TARGETS)]
    with subprocess.Popen([sys.executable, "-m", "train.local", *words]) as cluster:
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.wait(timeout=storm_s)
        cluster.send_signal(signal.SIGTERM)
        assert cluster.wait(timeout=30) == 128 + signal.SIGTERM

    kills = [event for event in events(out) if event["kind"] == "kill"]
    pause_s = longest_pause_s(out)
    hits = ", ".join(f"{count} {target}" for target, count in sorted(count_by_target(kills).items()))
    report = judge(out, f"storm of seed {seed}: {hits}; longest pause {pause_s:.1f} s")
    # Each kill waits until its victim trains again, so there are fewer than one in KILL_EVERY_S.
    assert len(kills) >= 2 * len(TARGETS)
    assert {kill["target"] for kill in kills} == TARGETS
    assert {kill["group"] for kill in kills} == {0, 1, 2, None}
    assert report["final_loss"] < report["first_loss"]
    assert pause_s < LONGEST_PAUSE_S


def count_by_target(kills: list[dict[str, Any]]) -> Counter[str]:
    return Counter(kill["target"] for kill in kills)
