"""From SIGKILL of a group to the survivors' next quorum and commit: ours beside torchft's own lighthouse.

    python tests/bench/bench_death.py [KILLS]

Runs a local cluster of three groups of one rank under each Lighthouse, kills the groups in turn with
SIGKILL at random phases of a step, and prints how long it took until every survivor had configured a
quorum without the dead one, and how much longer than a typical step until the survivors' next commit.
"""

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from train.cluster.local_cluster import LocalCluster

TINY = Path(__file__).parents[2] / "train" / "configs" / "tiny.toml"
GROUPS = 3


def kill_in_turn(kind: str, kills: int, out: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run a cluster and kill its groups; returns the events of the run and its report."""
    source = random.Random(0)
    options = {"config": TINY, "steps": 10**6, "lighthouse_kind": kind, "restart_delay_s": 0.0}
    with LocalCluster(out=out, groups=GROUPS, ranks=1, **options) as cluster:
        for number in range(kills):
            target = cluster.step() + 2
            for group in range(GROUPS):
                cluster.wait_step(target, group=group)
            time.sleep(source.random() / 4)  # a random phase of the step
            cluster.kill(number % GROUPS)
        cluster.wait_step(cluster.step() + 2)
        return cluster.events, cluster.report()


def delays_s(events: list[dict[str, Any]]) -> list[float]:
    """For each kill, seconds until the last survivor has a quorum without the dead group."""
    found = []
    for kill in (event for event in events if event["kind"] == "kill"):
        quorums = [
            event
            for event in events
            if event["kind"] == "quorum" and event["t"] > kill["t"] and event["group"] != kill["group"]
        ]
        first: dict[int, float] = {}
        for quorum in quorums:
            first.setdefault(quorum["group"], quorum["t"] - kill["t"])
        found.append(max(first.values()))
    return found


def main() -> None:
    """Measure both and print a line for each."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("headway", "torchft"):
            events, report = kill_in_turn(kind, kills, Path(folder) / kind)
            delays, stall = delays_s(events), report["survivor_stall_s"]
            print(
                f"{kind:8} {len(delays)} kills: to the survivors' next quorum "
                f"p50 {statistics.median(delays):.3f} s, max {max(delays):.3f} s; to their next commit, "
                f"less a typical step, p50 {stall['p50']:.3f} s, max {stall['max']:.3f} s; "
                f"{report['steps_discarded']} steps discarded, "
                f"{report['rounds_recomputed']} rounds computed again",
                flush=True,
            )


if __name__ == "__main__":
    main()
