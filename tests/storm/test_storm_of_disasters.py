"""Everything is killed at once, again and again, at random moments of a run that saves every few steps."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from s3_server import s3_server

from replica.backstop import Save, Store
from replica.ledger import EventKind
from train.cluster.local_cluster import LocalCluster
from train.evidence.files import read_evidence
from train.report import format_report

pytestmark = [pytest.mark.storm, pytest.mark.timeout(2400)]
DISASTERS = 20
STEPS = 400
EVERY = 3
WAIT_S = 300.0


def undisturbed(out: Path, tiny: Path, steps: int) -> list[str | None]:
    """The digest after every step of one group of one rank that nobody disturbs."""
    words = [sys.executable, "-m", "train", str(tiny), "--replica-group-id", "0", "--lighthouse-addr", "none"]
    words += ["--steps", str(steps), "--run.digest_every", "1", "--out", str(out)]
    subprocess.run(words, check=True, capture_output=True, timeout=WAIT_S)
    return [line.digest for line in read_evidence(out).lines]


def saves(out: Path) -> list[Save]:
    return [each for each in Store(str(out / "saves"), "tiny").listed() if isinstance(each, Save)]


def cluster(out: Path, tiny: Path, **settings: Any) -> LocalCluster:
    known = {"config": tiny, "save_every": EVERY, "restart_delay_s": 0.0, "heartbeat_timeout_s": 2.0}
    return LocalCluster(out=out, **{**known, **settings})


def test_twenty_disasters_leave_no_trace(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = undisturbed(tmp_path / "undisturbed", tiny, STEPS)
    out, pick, restored_to, reached = tmp_path / "run", random.Random(11), [], 0
    with cluster(out, tiny, groups=2, ranks=1, steps=STEPS) as run:
        for disaster in range(DISASTERS):
            # Beyond what was committed before the last disaster: all groups are back.
            run.wait_step(reached + EVERY + 2, timeout_s=WAIT_S)
            time.sleep(pick.random())  # anywhere in a step, and in a save
            before = saves(out)[0].name
            run.kill_everything(lighthouse=disaster % 3 != 2, down_s=0.0)
            newest = saves(out)[0].name  # what is complete now, whatever was being written
            assert newest.order >= before.order
            restored_to.append(newest.step)
            reached = run.step()
        report = run.wait(timeout_s=WAIT_S)
    with capsys.disabled():
        print(f"\n{DISASTERS} disasters\n{format_report(report)}", flush=True)
    reads = {event.values["save"]: event for event in read_evidence(out).of(EventKind.BACKSTOP_READ)}
    assert [event.integer("step") for event in reads.values()] == restored_to
    assert [event.values["digest"] for event in reads.values()] == [digests[step - 1] for step in restored_to]
    assert report["violations"] == []
    assert report["digests_agree"]
    assert (report["disaster_restores"], report["saves_failed"]) == (DISASTERS, 0)
    assert (report["samples_lost"], report["samples_repeated"]) == (0, 0)
    assert report["final_digest"] == digests[-1]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_another_number_of_ranks_begins_with_the_same_state(tmp_path: Path, tiny: Path, ranks: int) -> None:
    steps = 60
    digests = undisturbed(tmp_path / "undisturbed", tiny, steps) if ranks == 2 else []
    out = tmp_path / "run"
    with cluster(out, tiny, groups=2, ranks=2, steps=steps) as first:
        first.wait_step(EVERY + 4, timeout_s=WAIT_S)
        first.kill_everything()
        first.stop(grace_s=0.0)
    save = saves(out)[0]
    with cluster(out, tiny, groups=2, ranks=ranks, steps=steps, continues=True) as second:
        report = second.wait(timeout_s=WAIT_S)
    evidence = read_evidence(out)
    read = evidence.of(EventKind.BACKSTOP_READ)
    assert {event.values["digest"] for event in read} == {save.manifest.facts.digest}
    assert report["violations"] == []
    assert (report["samples_lost"], report["samples_repeated"], report["steps_committed"]) == (0, 0, steps)
    told = "saved with ranks per group 2" in "".join(path.read_text() for path in (out / "logs").iterdir())
    assert told == (ranks != 2)
    assert digests == [] or len(digests) == steps


def test_a_run_that_saves_to_s3(tmp_path: Path, tiny: Path) -> None:
    digests = undisturbed(tmp_path / "undisturbed", tiny, 60)
    out = tmp_path / "run"
    with s3_server("saves") as env:
        settings = {"groups": 2, "ranks": 1, "steps": 60, "backstop": "s3://saves/ours", "env": env}
        with cluster(out, tiny, **settings) as run:
            run.wait_step(EVERY * 3, timeout_s=WAIT_S)
            run.kill_everything(down_s=0.0)
            report = run.wait(timeout_s=WAIT_S)
    assert report["violations"] == []
    assert report["disaster_restores"] == 1
    assert report["final_digest"] == digests[-1]
