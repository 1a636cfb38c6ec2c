"""What the storms share: their marker, how long one lasts, and how a run is shown and judged."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cluster import processes
from train.report import format_report, write_report

DURATION_VARIABLE = "STORM_S"


@pytest.fixture
def storm_s() -> float:
    """Seconds that a storm lasts."""
    return float(os.environ.get(DURATION_VARIABLE, "240"))


@pytest.fixture
def tiny() -> Path:
    """Configuration of a job so small that its steps take a fraction of a second."""
    return Path(__file__).parents[2] / "train" / "configs" / "tiny.toml"


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str]) -> Callable[[Path, str], dict[str, Any]]:
    """judge(out, title): print the report of a run, and fail unless every promise was kept."""

    def judge(out: Path, title: str) -> dict[str, Any]:
        report = write_report(out)
        with capsys.disabled():
            print(f"\n{title}\n{format_report(report)}", flush=True)
        assert report["violations"] == []
        assert report["digests_agree"]
        assert (report["steps_replayed"], report["backstop_reads"]) == (0, 0)
        assert (report["samples_lost"], report["samples_repeated"]) == (0, 0)
        assert left_running(out) == []
        return report

    return judge


def left_running(folder: Path) -> list[int]:
    """Every process whose output goes into the folder: that is, whatever a cluster has started."""
    found = []
    for pid in processes.parents():
        try:
            output = Path(os.readlink(f"/proc/{pid}/fd/1"))
        except OSError:
            continue
        if output.is_relative_to(folder):
            found.append(pid)
    return found
