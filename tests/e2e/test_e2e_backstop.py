"""The disaster: every process is killed at once, and the job goes on from its newest save, bit for bit."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replica.backstop import Save, Store
from replica.ledger import EventKind
from train.cluster.local_cluster import LocalCluster
from train.evidence.files import read_evidence
from train.evidence.violations import ViolationKind

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
TINY = HERE.parents[1] / "train" / "configs" / "tiny.toml"
STEPS = 44
EVERY = 4
WAIT_S = 200.0


def train_alone(out: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """One group of one rank that nobody disturbs and that needs no Lighthouse."""
    words = [sys.executable, "-m", "train", str(TINY), "--replica-group-id", "0", "--lighthouse-addr", "none"]
    words += ["--steps", str(STEPS), "--run.digest_every", "1", "--out", str(out), *flags]
    return subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str | None]:
    """The digest after every step."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert train_alone(out).returncode == 0
    return {line.step: line.digest for line in read_evidence(out).lines}


def cluster(out: Path, **settings: Any) -> LocalCluster:
    known = {"config": TINY, "steps": STEPS, "save_every": EVERY, "restart_delay_s": 0.0, "ranks": 1}
    return LocalCluster(out=out, heartbeat_timeout_s=2.0, **{**known, **settings})


def scripted(name: str) -> dict[str, Any]:
    """Settings of a cluster that trains the same job by a script of ours."""
    args = (str(TINY), "--steps", str(STEPS), "--run.digest_every", "1")
    return {"config": None, "job": "tiny", "script": HERE / name, "args": args}


def saves(out: Path) -> list[Save]:
    return saves_at(out / "saves")


def saves_at(place: Path) -> list[Save]:
    return [each for each in Store(str(place), "tiny").listed() if isinstance(each, Save)]


def exit_codes(out: Path) -> list[int]:
    return [event.integer("code") or 0 for event in read_evidence(out).of(EventKind.GROUP_EXITED)]


def wait_until(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def reads(watch: Path) -> list[tuple[float, str]]:
    lines = watch.read_text().splitlines() if watch.exists() else []
    return [(float(t), path) for t, _, path in (line.partition(" ") for line in lines)]


def test_everything_is_killed_and_another_number_of_groups_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: dict[int, str | None]
) -> None:
    out, notes, pick = tmp_path / "run", tmp_path / "reads", random.Random(7)
    watch = {"PYTHONPATH": str(HERE / "watched"), "WATCHED": str(out / "saves"), "WATCHED_NOTES": str(notes)}
    killed_t = []
    with cluster(out, groups=2, env=watch) as first:
        for _ in range(2):
            first.wait_step(first.step() + EVERY + 2 + pick.randrange(EVERY), timeout_s=WAIT_S)
            time.sleep(pick.random() * 0.2)  # anywhere in a step, and in a save
            killed_t.append(time.time())
            first.kill_everything(down_s=0.0 if len(killed_t) == 1 else None)
        first.stop(grace_s=0.0)
    with cluster(out, groups=3, env=watch, continues=True) as second:
        report = second.wait(timeout_s=WAIT_S)

    assert report["violations"] == []
    assert report["digests_agree"]
    assert (report["disaster_restores"], report["samples_lost"], report["samples_repeated"]) == (2, 0, 0)
    assert report["steps_restored_over"] > 0
    assert report["final_digest"] == undisturbed[STEPS - 1]
    assert saves(out)[0].name.step == STEPS
    assert saves(out)[0].manifest.facts.digest == undisturbed[STEPS - 1]
    check_reads(out, reads(notes), killed_t)


def check_reads(out: Path, seen: list[tuple[float, str]], killed_t: list[float]) -> None:
    """While a group lives no save is read: only between a disaster and the next commit, and then it is."""
    commits_t = sorted(line.t for line in read_evidence(out).lines)
    for t in killed_t:
        back_t = next(each for each in commits_t if each > t + 1.0)
        assert any(t < read_t < back_t for read_t, _ in seen)
        seen = [(read_t, path) for read_t, path in seen if not t < read_t < back_t]
    assert seen == []


def test_the_last_group_is_asked_to_leave_and_another_number_of_ranks_goes_on(
    tmp_path: Path, undisturbed: dict[int, str | None]
) -> None:
    out = tmp_path / "run"
    script = scripted("paced_trainer.py")
    with cluster(out, groups=1, save_every=1000, restart=False, **script) as first:
        first.wait_step(5, timeout_s=WAIT_S)
        os.kill(first.pids(0)[0], signal.SIGTERM)  # to the launcher, as a preempted host would
        first.wait(timeout_s=WAIT_S)
    [save] = saves(out)
    step = save.name.step
    assert step >= 5
    assert save.manifest.facts.digest == undisturbed[step - 1]

    with cluster(out, groups=1, ranks=2, continues=True) as second:
        report = second.wait(timeout_s=WAIT_S)
    assert report["violations"] == []
    assert (report["samples_lost"], report["samples_repeated"]) == (0, 0)
    evidence = read_evidence(out)
    [read] = evidence.of(EventKind.BACKSTOP_READ)
    # Computed by two ranks over what one had saved.
    assert read.values["digest"] == undisturbed[step - 1]
    committed = [line.step for line in evidence.lines if line.outcome == "committed"]
    assert committed == list(range(STEPS))


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk on which no save has room."""
    folder = tmp_path / "full"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_training_goes_on_when_no_save_can_be_made_and_the_end_tells(
    tmp_path: Path, full_disk: Path, undisturbed: dict[int, str | None]
) -> None:
    ended = train_alone(tmp_path / "out", "--backstop", str(full_disk), "--backstop.every_steps", "20")
    assert ended.returncode == 4
    [last] = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert f"save of step {STEPS}" in last
    assert "No space left on device" in last
    assert "Traceback" not in ended.stderr
    evidence = read_evidence(tmp_path / "out")
    assert [event.integer("step") for event in evidence.of(EventKind.SAVE_FAILED)] == [20, 40, STEPS]
    assert {line.step: line.digest for line in evidence.lines} == undisturbed


def test_the_writer_of_the_last_save_dies_and_another_makes_it(
    tmp_path: Path, undisturbed: dict[int, str | None]
) -> None:
    out = tmp_path / "run"
    script = scripted("dying_writer.py")
    with cluster(out, groups=2, save_every=1000, restart=False, **script) as run:
        report = run.wait(timeout_s=WAIT_S)
    [save] = saves(out)
    assert (save.name.step, save.manifest.facts.group) == (STEPS, 1)
    assert save.manifest.facts.digest == undisturbed[STEPS - 1]
    assert report["violations"] == []
    died = [event for event in read_evidence(out).of(EventKind.GROUP_EXITED) if event.group == 0]
    assert len(died) == 1


def test_the_writer_dies_and_one_that_has_only_just_healed_makes_the_last_save(
    tmp_path: Path, undisturbed: dict[int, str | None]
) -> None:
    out = tmp_path / "run"
    with cluster(out, groups=2, save_every=1000, **scripted("waiting_writer.py")) as run:
        run.wait_step(STEPS - 10, group=1, timeout_s=WAIT_S)
        run.kill(1)
        report = run.wait(timeout_s=WAIT_S)
    [save] = saves(out)
    assert (save.name.step, save.manifest.facts.group) == (STEPS, 1)
    assert save.manifest.facts.digest == undisturbed[STEPS - 1]
    # Nobody has killed group 0 but itself.
    assert {each["kind"] for each in report["violations"]} == {ViolationKind.SURVIVOR_RESTARTED}
    assert [heal.values["step"] for heal in read_evidence(out).of(EventKind.HEAL)] == [STEPS]


@pytest.mark.parametrize("room", [True, False])
def test_all_groups_are_asked_to_leave_at_once_and_the_last_one_saves_or_tells(
    tmp_path: Path, room: bool, request: pytest.FixtureRequest
) -> None:
    out = tmp_path / "run"
    place = tmp_path / "saves" if room else request.getfixturevalue("full_disk")
    script = scripted("paced_trainer.py")
    with cluster(out, groups=2, save_every=1000, restart=False, backstop=place, **script) as run:
        run.wait_step(5, timeout_s=WAIT_S)
        for group in (0, 1):
            os.kill(run.pids(group)[0], signal.SIGTERM)
        wait_until(lambda: len(read_evidence(out).of(EventKind.FINISHED)) == 2)
        # When one has ended with 4, nobody writes down any more how others end.
        wait_until(lambda: (0 if room else 4) in exit_codes(out))
        report = run.report()
    assert report["violations"] == []
    evidence = read_evidence(out)
    found = saves_at(place)
    failed = evidence.of(EventKind.SAVE_FAILED)
    assert (max(exit_codes(out)), len(found), len(failed)) == ((0, 1, 0) if room else (4, 0, 1))
    step = found[0].name.step if room else failed[0].integer("step")
    assert step == max(line.step for line in evidence.lines if line.outcome == "committed") + 1


def test_what_cannot_be_loaded_neither_counts_as_saved_nor_is_trained_over(
    tmp_path: Path, undisturbed: dict[int, str | None]
) -> None:
    place = tmp_path / "saves"
    flags = ("--backstop", str(place), "--backstop.every_steps", "20")
    assert train_alone(tmp_path / "first", *flags).returncode == 0
    shutil.copytree(place / "tiny", place / "copy")
    copied = train_alone(tmp_path / "copy", *flags, "--job", "copy")
    assert copied.returncode == 4
    assert "error: there are saves of job copy, and none can be loaded" in copied.stderr
    assert "Traceback" not in copied.stderr

    newest = saves_at(place)[0]
    assert newest.name.step == STEPS
    [data] = (place / "tiny" / newest.name.text).glob("*.distcp")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert train_alone(tmp_path / "again", *flags).returncode == 0
    [read] = read_evidence(tmp_path / "again").of(EventKind.BACKSTOP_READ)
    assert 0 < (read.integer("step") or 0) < STEPS
    last = saves_at(place)[0]
    assert (last.name.step, last.name.quorum_id) == (STEPS, newest.name.quorum_id + 1)
    assert last.manifest.facts.digest == undisturbed[STEPS - 1]
    assert Store(str(place), "tiny").verify(last) == []
