"""A group that joins again and again, as fast as it can: those that train hardly notice."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from forking_launcher import VARIABLE

from replica.ledger import EventKind
from train.cluster.local_cluster import LocalCluster
from train.evidence.files import Evidence, read_evidence
from train.evidence.history import commits
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.storm, pytest.mark.timeout(600)]
TESTS = Path(__file__).parents[1]
LAUNCHER = TESTS / "storm" / "forking_launcher.py"
# Its micro-batches take a while and leave the cores idle, as if each group had a host of its own.
TRAINER = TESTS / "e2e" / "paced_trainer.py"
ENDLESS = 1_000_000
# A state of 28 MB, large enough that each rank has a chunk to ask of each donor, and small batches.
SETTINGS = {
    "job.steps": ENDLESS,
    "data.sequence_length": 16,
    "data.samples_per_micro_batch": 1,
    "model.dim": 256,
    "model.layers": 3,
    "model.ffn": 704,
    "optimizer.schedule": "constant",
}
DONORS, JOINER = (0, 1), 2
UNDISTURBED_STEPS = 40
STORM_S = 60.0
SLOWER = 1.5
Attempt = tuple[int, int | None]


def start(start_cluster: StartCluster, config: Path) -> LocalCluster:
    return start_cluster(
        script=TRAINER,
        args=(str(config), *(f"--{key}={value}" for key, value in SETTINGS.items())),
        job="tiny",
        groups=len(DONORS) + 1,
        ranks=2,
        steps=ENDLESS,
        launcher=(sys.executable, str(LAUNCHER)),
        env={VARIABLE: str(JOINER)},
        restart=False,
    )


def wait_kill(cluster: LocalCluster) -> None:
    deadline = time.monotonic() + 120
    while not any(event["kind"] == EventKind.KILL for event in cluster.events):
        cluster.check()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def steps_s(evidence: Evidence, since: float, until: float) -> Iterator[tuple[Attempt, float]]:
    """Step and quorum id, and seconds from commit to commit, of what a donor committed in that time."""
    for group in DONORS:
        for before, line in pairwise(commits(evidence.ledgers[group])):
            if since < before.t and line.t < until:
                yield (line.step, line.quorum_id), line.t - before.t


def test_a_minute_of_joins_leaves_the_donors_their_pace(
    local_cluster: StartCluster,
    tiny: Path,
    storm_s: float,
    judge: Callable[[Path, str], dict[str, Any]],
) -> None:
    cluster = start(local_cluster, tiny)
    wait_kill(cluster)
    cluster.wait_step(cluster.step() + 2)
    calm_t, donors = time.time(), [cluster.pids(group) for group in DONORS]
    cluster.wait_step(cluster.step() + UNDISTURBED_STEPS, timeout_s=240.0)
    storm_t = time.time()
    (cluster.out / "storm").touch()
    time.sleep(min(STORM_S, storm_s))  # how long it lasts
    end_t = time.time()
    assert [cluster.pids(group) for group in DONORS] == donors
    cluster.stop()

    evidence = read_evidence(cluster.out)
    assert all(len({line.incarnation for line in evidence.ledgers[group]}) == 1 for group in DONORS)
    lines = evidence.ledgers[JOINER]
    healed = {(line.step, line.quorum_id) for line in lines if line.healed_from is not None}
    calm = [seconds for _, seconds in steps_s(evidence, calm_t, storm_t)]
    storm = list(steps_s(evidence, storm_t, end_t))
    joins = [seconds for attempt, seconds in storm if attempt in healed]
    typical, all_s, join_s = map(statistics.median, (calm, [seconds for _, seconds in storm], joins))
    judge(
        cluster.out,
        f"{len(healed)} joins in {end_t - storm_t:.0f} s: a step of the donors takes {all_s:.3f} s, "
        f"one with a join {join_s:.3f} s, an undisturbed one {typical:.3f} s (medians)",
    )
    assert len(healed) >= (end_t - storm_t) / 20
    assert max(all_s, join_s) <= SLOWER * typical
