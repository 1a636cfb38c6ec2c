"""The local cluster, with trainers and Lighthouses that only pretend, so that it starts at once."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replica.errors import UserError
from train.cluster import processes
from train.cluster.commands import ClusterSettings
from train.cluster.errors import ClusterError
from train.cluster.local_cluster import LocalCluster
from train.cluster.snapshot import GroupState
from train.cluster.supervised_group import Run

HERE = Path(__file__).parent
LAUNCHER = (sys.executable, "-S", str(HERE / "fake_launcher.py"))

Start = Callable[..., LocalCluster]


def pretended_lighthouse(settings: ClusterSettings, port: int) -> list[str]:
    return [sys.executable, "-S", str(HERE / "fake_lighthouse.py"), f"127.0.0.1:{port}"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a cluster of pretended trainers; ends it, and proves that nothing of it is left."""
    monkeypatch.setattr("train.cluster.lighthouse_child.lighthouse_command", pretended_lighthouse)
    clusters: list[LocalCluster] = []

    def start(*manners: str, step_s: float = 0.02, steps: int = 60, **options: Any) -> LocalCluster:
        cluster = LocalCluster(
            **{
                "out": tmp_path / "run",
                "script": HERE / "fake_trainer.py",
                "args": (str(step_s), *manners),
                "launcher": LAUNCHER,
                "groups": 2,
                "ranks": 2,
                "steps": steps,
                "restart_delay_s": 0.0,
                **options,
            }
        )
        clusters.append(cluster)
        return cluster.start()

    yield start
    for cluster in clusters:
        cluster.stop(grace_s=0.0)
        assert writers(cluster.out) == []


def writers(folder: Path) -> list[int]:
    """Every process whose output goes into the folder: that is, whatever a cluster has started."""
    return [pid for pid in processes.parents() if output_of(pid).is_relative_to(folder)]


def output_of(pid: int) -> Path:
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/1"))
    except OSError:
        return Path()


def kinds(cluster: LocalCluster) -> list[str]:
    return [event["kind"] for event in cluster.events]


def run_of(cluster: LocalCluster, group: int) -> Run:
    with cluster._supervisor.group(group) as found:
        return found.run


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_a_job_runs_to_its_end(start: Start) -> None:
    cluster = start(steps=20)
    report = cluster.wait(timeout_s=20)
    assert report["steps_committed"] == 20
    assert cluster.finished
    assert (cluster.out / "report.json").is_file()
    assert cluster.step() == cluster.step(0) == cluster.step(1) == 20
    assert [each.state for each in cluster.snapshot().groups] == [GroupState.FINISHED] * 2
    events = cluster.events
    assert [event["kind"] for event in events[:2]] == ["job_started", "lighthouse_up"]
    assert {event["group"] for event in events if event["kind"] == "group_launched"} == {0, 1}
    assert [event["code"] for event in events if event["kind"] == "group_exited"] == [0, 0]
    assert not cluster.snapshot().lighthouse_up


def test_a_killed_group_is_gone_at_once_and_comes_back(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(5, group=1)
    before = cluster.pids(1)
    assert len(before) == 3
    other = cluster.pids(0)
    assert cluster.kill(1) == before
    assert not any(processes.is_running(pid) for pid in before)
    step = cluster.step(1)
    assert cluster.snapshot().groups[1].state in (GroupState.DEAD, GroupState.RESTARTING, GroupState.HEALING)
    cluster.wait_step(step + 3, group=1)
    assert cluster.alive(1)
    assert set(cluster.pids(1)).isdisjoint(before)
    assert cluster.pids(0) == other
    kill = next(event for event in cluster.events if event["kind"] == "kill")
    assert (kill["group"], kill["rank"], kill["target"]) == (1, None, "group")
    assert kill["step"] >= 5
    assert cluster.snapshot().kills == 1


def test_one_rank_is_killed_alone(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(3, group=0)
    launcher = cluster.pids(0)[0]
    (worker,) = cluster.kill(0, rank=1)
    assert worker != launcher
    until(lambda: kinds(cluster).count("group_launched") == 3)
    exited = next(event for event in cluster.events if event["kind"] == "group_exited")
    assert (exited["group"], exited["code"]) == (0, 3)
    kill = next(event for event in cluster.events if event["kind"] == "kill")
    assert (kill["group"], kill["rank"], kill["target"]) == (0, 1, "rank")


def test_workers_of_a_killed_launcher_end_before_the_group_is_back(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(3, group=0)
    launcher, *workers = cluster.pids(0)
    assert cluster.kill_launcher(0) == [launcher]
    until(lambda: kinds(cluster).count("group_launched") == 3)
    assert not any(processes.is_running(pid) for pid in workers)


def test_what_outlives_its_group_is_killed_with_it(start: Start) -> None:
    cluster = start("linger", steps=9000)
    until(lambda: len(cluster.pids(0)) == 5)
    pids = cluster.pids(0)
    cluster.kill(0)
    assert not any(processes.is_running(pid) for pid in pids)


def test_two_groups_are_killed_at_once(start: Start) -> None:
    cluster = start(steps=9000, groups=3)
    for group in range(3):
        cluster.wait_step(3, group=group)
    cluster.kill(0)
    cluster.kill(1)
    step = cluster.step(2)
    for group in range(3):
        cluster.wait_step(step + 3, group=group)


def test_a_paused_group_stands_still_and_goes_on(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(3, group=0)
    cluster.pause(0)
    step = cluster.step(0)
    cluster.wait_step(cluster.step(1) + 5, group=1)
    assert cluster.step(0) == step
    assert cluster.snapshot().groups[0].state is GroupState.PAUSED
    cluster.resume(0)
    cluster.wait_step(step + 2, group=0)
    assert [kind for kind in kinds(cluster) if kind.startswith("group_") and kind.endswith("ed")][-2:] == [
        "group_paused",
        "group_resumed",
    ]


def test_one_rank_is_paused(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(1, group=0)
    cluster.pause(0, rank=1)
    worker = processes.worker_of_rank(cluster.pids(0), 1)
    until(lambda: Path(f"/proc/{worker}/stat").read_text().split(")")[1].split()[0] == "T")
    cluster.resume(0)
    cluster.wait_step(cluster.step(0) + 2, group=0)


def test_a_power_cut_takes_everything_and_another_cluster_goes_on(start: Start) -> None:
    cluster = start(steps=9000)
    for group in range(2):
        cluster.wait_step(3, group=group)
    pids = cluster.kill_everything()
    assert len(pids) == 7
    assert not any(processes.is_running(pid) for pid in pids)
    assert cluster.snapshot().kills == 3
    killed = [(e["target"], e["group"]) for e in cluster.events if e["kind"] == "kill"]
    assert sorted(killed, key=str) == [("group", 0), ("group", 1), ("lighthouse", None)]
    with pytest.raises(ClusterError, match="every group is down"):
        cluster.wait(timeout_s=20)
    assert kinds(cluster).count("group_launched") == 2
    step = cluster.step()
    cluster.stop()
    after = start(steps=step + 5, groups=1, ranks=1, continues=True)
    assert after.out == cluster.out
    assert after.wait(timeout_s=20)["steps_committed"] == step + 5
    assert kinds(after).count("job_started") == 2


def test_after_a_power_cut_all_comes_back_when_it_is_told_to(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(2, group=1)
    address = cluster.lighthouse_address
    cluster.kill_everything(down_s=0.3)
    assert not cluster.alive(0)
    with pytest.raises(ClusterError, match="no group runs now"):
        cluster.kill_everything()
    step = cluster.step()
    for group in range(2):
        cluster.wait_step(step + 2, group=group)
    assert cluster.lighthouse_address == address
    assert cluster.snapshot().lighthouse_up


def test_the_lighthouse_can_outlive_all_groups(start: Start) -> None:
    cluster = start(steps=9000)
    for group in range(2):
        cluster.wait_step(2, group=group)
    assert len(cluster.kill_everything(lighthouse=False)) == 6
    assert cluster.snapshot().lighthouse_up
    assert cluster.snapshot().kills == 2


def test_a_group_that_waits_for_its_next_life_stays_down_too(start: Start) -> None:
    cluster = start(steps=9000, restart_delay_s=60.0)
    cluster.wait_step(2, group=1)
    cluster.kill(1)
    until(lambda: run_of(cluster, 1) is Run.WAITING)
    cluster.kill_everything()
    with pytest.raises(ClusterError, match="every group is down"):
        cluster.wait(timeout_s=20)


def test_the_step_of_a_restored_group_is_that_of_its_save(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(5)
    cluster.kill_everything()
    with (cluster.out / "events.jsonl").open("a") as events:
        for group in range(2):
            read = {"t": time.time(), "kind": "backstop_read", "group": group, "step": 2}
            events.write(json.dumps(read) + "\n")
    assert cluster.step() == 2


def test_an_eviction_is_on_record_once_the_lighthouse_has_agreed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(3, group=1)
    with pytest.raises(ClusterError, match="group 1 was not evicted: no Lighthouse answers at"):
        cluster.evict(1)
    monkeypatch.setattr("train.cluster.local_cluster.evict", lambda address, job, group, access: group == 1)
    with pytest.raises(ClusterError, match="group 0 was not evicted: the Lighthouse knows no living one"):
        cluster.evict(0)
    assert "group_evicted" not in kinds(cluster)
    cluster.evict(1)
    evicted = next(event for event in cluster.events if event["kind"] == "group_evicted")
    assert evicted["group"] == 1
    assert evicted["step"] >= 3
    assert [each.state for each in cluster.snapshot().groups] == [GroupState.TRAINING, GroupState.DEAD]
    assert cluster.snapshot().kills == 0


def test_the_lighthouse_comes_back_on_its_port(start: Start) -> None:
    cluster = start(steps=9000)
    address = cluster.lighthouse_address
    cluster.kill_lighthouse()
    assert not cluster.snapshot().lighthouse_up
    host, port = address.split(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port))):
        pass
    with pytest.raises(ClusterError, match="does not run"):
        cluster.kill_lighthouse()
    cluster.start_lighthouse()
    assert cluster.lighthouse_address == address
    socket.create_connection((host, int(port))).close()
    found = [kind for kind in kinds(cluster) if kind in ("kill", "lighthouse_down", "lighthouse_up")]
    assert found == ["lighthouse_up", "kill", "lighthouse_down", "lighthouse_up"]


def test_the_lighthouse_comes_back_by_itself_after_a_while(start: Start) -> None:
    cluster = start(steps=9000)
    address = cluster.lighthouse_address
    cluster.kill_lighthouse(down_s=0.3)
    assert not cluster.snapshot().lighthouse_up
    until(lambda: cluster.snapshot().lighthouse_up)
    assert cluster.lighthouse_address == address
    assert cluster.snapshot().kills == 1
    down, up = [event["t"] for event in cluster.events if event["kind"].startswith("lighthouse_")][-2:]
    assert up - down >= 0.3


def test_a_killed_group_stays_down_as_long_as_it_is_told(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(2, group=1)
    cluster.kill(1, down_s=0.6)
    cluster.wait_step(cluster.step(1) + 1, group=1)
    cluster.kill(1)
    cluster.wait_step(cluster.step(1) + 1, group=1)
    kills = [event["t"] for event in cluster.events if event["kind"] == "kill"]
    launches = [e["t"] for e in cluster.events if e["kind"] == "group_launched" and e["group"] == 1][1:]
    down_s = [launch - kill for kill, launch in zip(kills, launches, strict=True)]
    assert down_s[0] >= 0.6
    assert down_s[1] < 0.6


def test_a_paused_lighthouse_goes_on(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.pause_lighthouse()
    assert not cluster.snapshot().lighthouse_up
    cluster.resume_lighthouse()
    assert cluster.snapshot().lighthouse_up


def test_a_lighthouse_that_ends_by_itself_is_started_again(start: Start) -> None:
    cluster = start(steps=9000)
    address = cluster.lighthouse_address
    (pid,) = [pid for pid in writers(cluster.out) if output_of(pid).name == "lighthouse.log"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: kinds(cluster).count("lighthouse_up") == 2)
    assert cluster.lighthouse_address == address


def test_a_group_that_must_not_be_restarted_ends_the_cluster_with_its_sentence(start: Start) -> None:
    cluster = start("refuse")
    with pytest.raises(ClusterError, match="cannot run: the moon is in the wrong place: wait") as caught:
        cluster.wait(timeout_s=20)
    assert caught.value.exit_code == 4
    assert not cluster.alive(0)
    assert not cluster.alive(1)


def test_a_group_that_always_fails_ends_the_cluster(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.cluster.supervision._MAX_DELAY_S", 0.0)
    cluster = start("crash")
    with pytest.raises(ClusterError, match="3 times in a row without a commit: a crash without") as caught:
        cluster.wait_step(1, timeout_s=20)
    assert "group-" in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_latecomer_does_not_train_alone(start: Start) -> None:
    cluster = start(steps=60, restart_delay_s=60.0, lighthouse_kind="torchft")
    cluster.wait_step(2, group=1)
    cluster.kill(1)
    cluster.wait(timeout_s=20)
    assert cluster.step(0) == 60
    assert cluster.step(1) < 60
    assert kinds(cluster).count("group_launched") == 2


def test_without_restart_a_killed_group_stays_down(start: Start) -> None:
    cluster = start(steps=60, restart=False)
    cluster.wait_step(3, group=0)
    cluster.kill(0)
    with pytest.raises(ClusterError, match="group 0 does not run"):
        cluster.kill(0)
    cluster.wait(timeout_s=20)
    assert kinds(cluster).count("group_launched") == 2


def test_waiting_fails_when_all_are_down(start: Start) -> None:
    cluster = start(steps=9000, restart=False)
    cluster.wait_step(3)
    for group in range(2):
        cluster.kill(group)
    with pytest.raises(ClusterError, match="every group is down"):
        cluster.wait(timeout_s=20)


def test_waiting_has_a_limit_and_shows_the_logs(start: Start) -> None:
    cluster = start(steps=9000)
    with pytest.raises(ClusterError, match=r"waited 0.2 s for any group to commit 8000 steps") as caught:
        cluster.wait_step(8000, timeout_s=0.2)
    assert "group-0.log" in str(caught.value)


def test_a_step_that_will_not_come_is_not_waited_for(start: Start) -> None:
    cluster = start(steps=5)
    with pytest.raises(ClusterError, match="to commit 9 steps, and the job has ended before"):
        cluster.wait_step(9, group=1, timeout_s=60)
    cluster.wait_step(5, group=1)


def test_a_script_that_trains_nothing_is_told_so(start: Start) -> None:
    cluster = start("idle")
    with pytest.raises(ClusterError, match="none has committed a step: let the script open") as caught:
        cluster.wait(timeout_s=60)
    assert caught.value.exit_code == 4
    assert "(nothing was written)" in str(caught.value)


def test_a_file_that_hides_a_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(UserError, match=r"train\.py hides Headway's package `train`"):
        LocalCluster(out=tmp_path / "run")
    LocalCluster(out=tmp_path / "run", script=HERE / "fake_trainer.py")
    (tmp_path / "lighthouse.py").touch()
    with pytest.raises(UserError, match=r"lighthouse\.py hides"):
        LocalCluster(out=tmp_path / "run", script=HERE / "fake_trainer.py")


def test_an_interrupted_cluster_stops_waiting(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.interrupt()
    with pytest.raises(ClusterError, match="interrupted"):
        cluster.wait()


def test_stop_ends_everything_within_its_time(start: Start) -> None:
    cluster = start(steps=9000)
    cluster.wait_step(1)
    pids = cluster.pids(0) + cluster.pids(1)
    cluster.pause(0)
    began_s = time.monotonic()
    cluster.stop()
    assert time.monotonic() - began_s < 5
    assert not any(processes.is_running(pid) for pid in pids)
    with pytest.raises(ClusterError, match="stopped"):
        cluster.wait()
    assert not cluster.finished


def test_unknown_groups_and_ranks_are_named(start: Start) -> None:
    cluster = start(steps=9000)
    with pytest.raises(ClusterError, match="no group 2: groups are 0 to 1"):
        cluster.kill(2)
    cluster.wait_step(1, group=0)
    with pytest.raises(ClusterError, match="no process of rank 7"):
        cluster.kill(0, rank=7)
    assert cluster.snapshot().kills == 0
    assert "kill" not in kinds(cluster)


def test_a_folder_of_another_run_is_refused(start: Start) -> None:
    cluster = start(steps=3)
    cluster.wait(timeout_s=20)
    with pytest.raises(UserError, match="holds another run"):
        start(steps=3)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        LocalCluster(out=tmp_path / "file" / "run", script=HERE / "fake_trainer.py").start()


def test_nothing_works_before_the_start(tmp_path: Path) -> None:
    cluster = LocalCluster(out=tmp_path, script=HERE / "fake_trainer.py")
    with pytest.raises(ClusterError, match="has not been started"):
        cluster.wait_step(1)
    cluster.stop()


@pytest.mark.parametrize(
    ("options", "says"),
    [({"lighthouse_kind": "lamp"}, "headway or torchft"), ({"launcher": "rocket"}, "headway or torchrun")],
)
def test_unknown_choices_are_refused_with_the_known_ones(options: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        LocalCluster(script=HERE / "fake_trainer.py", **options)  # type: ignore[arg-type]


KILLED_CLUSTER = """
import sys, time
from pathlib import Path
from train.cluster.local_cluster import LocalCluster
from train.cluster.commands import ClusterSettings
cluster = LocalCluster(
    out=Path(sys.argv[1]), script=Path(sys.argv[2]), launcher=sys.argv[3].split(), args=["0.02"],
    lighthouse_kind="torchft", groups=2, ranks=2, steps=90000,
).start()
cluster.wait_step(1, group=0)
cluster.wait_step(1, group=1)
print(*cluster.pids(0), *cluster.pids(1), flush=True)
time.sleep(600)
"""


def test_everything_ends_when_the_cluster_itself_is_killed(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "run"), str(HERE / "fake_trainer.py"), " ".join(LAUNCHER)]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_CLUSTER, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 6
        program.kill()
    assert processes.wait_until_gone(pids, timeout_s=10.0) == []
    until(lambda: writers(tmp_path) == [])
