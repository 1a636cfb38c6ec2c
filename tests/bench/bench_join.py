"""How long the others wait when a group joins a job whose state is large, and where that time goes.

    python tests/bench/bench_join.py [MB] [JOINS]

Runs a local cluster of three groups of one rank that train a decoder whose parameters and optimizer
state have so many MB (1000 by default), in exact mode. One group after the other is killed and
started again some seconds later, and takes the state from the two others. Of the attempt in which it
does, the length is compared with the steps that the same two groups took while nothing else ran.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replica.ledger import EventKind, LedgerLine
from train.cluster.local_cluster import LocalCluster
from train.evidence.files import Event, Evidence, read_evidence
from train.evidence.history import commits

GROUPS = 3
DIM = 1024
VOCAB = 256
# Parameter, and the two moments of AdamW.
BYTES_PER_PARAMETER = 12
# A group is away for so many steps of all three groups.
AWAY_STEPS = 9
LIMIT_S = 300.0
COPIES = "copies.jsonl"
PHASES = ("total", "quorum", "compute", "reduce", "commit")
STEPS = {
    "calm": "a step of two groups, undisturbed",
    "busy": "one while the third group's processes start",
    "healing": "one in which the third group heals",
}


@dataclass(frozen=True, kw_only=True)
class Join:
    """One join, as the two groups that train saw it; lines are theirs.

    calm: steps that nothing disturbed, with the same members. busy: those while the joiner's processes
    started. healing: the attempt in which it healed. copies: seconds of each copy of a donor's state.
    """

    calm: Sequence[LedgerLine]
    busy: Sequence[LedgerLine]
    healing: Sequence[LedgerLine]
    copies: Sequence[float]
    heal: Event

    def row(self) -> dict[str, float]:
        """The figures of this join, in seconds if not named otherwise."""
        figures = {
            f"{phase}, {name}": statistics.median(getattr(line.seconds, phase) for line in lines)
            for name, lines in (("calm", self.calm), ("busy", self.busy), ("healing", self.healing))
            for phase in PHASES
        }
        figures["longer"] = figures["total, healing"] - figures["total, calm"]
        figures["copy"] = statistics.median(self.copies)
        figures["heal"] = self.heal.number("seconds")
        figures["MB"] = self.heal.number("bytes") / 1e6
        return figures


def trainer() -> None:
    """Be the reference trainer, and write down how long each copy for joiners takes."""
    from replica.transfer import donor
    from train.__main__ import main

    stage = donor.Donor.stage

    def timed(*arguments: Any, **options: Any) -> None:
        begun = time.perf_counter()
        stage(*arguments, **options)
        line = {"t": time.time(), "seconds": time.perf_counter() - begun}
        with Path(os.environ["HEADWAY_OUT"], COPIES).open("a") as file:
            file.write(json.dumps(line) + "\n")

    donor.Donor.stage = timed  # type: ignore[method-assign]
    main()


def overrides(megabytes: int) -> dict[str, object]:
    """Settings of a decoder whose state has about so many MB, and of steps of a second or two."""
    per_layer = 4 * DIM * DIM + 3 * DIM * 3 * DIM
    layers = round((megabytes * 1e6 / BYTES_PER_PARAMETER - 2 * VOCAB * DIM) / per_layer)
    model = {"dim": DIM, "layers": max(1, layers), "heads": 8, "kv_heads": 8, "ffn": 3 * DIM}
    data = {"sequence_length": 32, "samples_per_micro_batch": 1}
    return {
        **{f"--model.{name}": value for name, value in model.items()},
        **{f"--data.{name}": value for name, value in data.items()},
        "--job.micro_batches": 6,
        "--optimizer.schedule": "constant",
        "--run.digest_every": 0,
    }


def run(out: Path, megabytes: int, joins: int) -> Evidence:
    """Train, and have the groups killed and join again in turn; returns what was written down."""
    config = Path(__file__).parents[2] / "train" / "configs" / "default.toml"
    words = [str(config), *(str(word) for pair in overrides(megabytes).items() for word in pair)]
    script = Path(__file__)
    with LocalCluster(
        out=out, script=script, args=words, job="join", groups=GROUPS, ranks=1, steps=10**6
    ) as cluster:
        for number in range(joins):
            wait_all(cluster)
            cluster.kill(number % GROUPS, down_s=AWAY_STEPS * (cluster.snapshot().step_s or 1.0))
        wait_all(cluster)
    return read_evidence(out)


def wait_all(cluster: LocalCluster) -> None:
    """Block until every group has committed two more steps."""
    target = cluster.step() + 2
    for group in range(GROUPS):
        cluster.wait_step(target, group=group, timeout_s=LIMIT_S)


def joins_in(evidence: Evidence) -> list[Join]:
    """The joins of a run, one after each kill."""
    return [join_after(evidence, kill) for kill in evidence.of(EventKind.KILL)]


def join_after(evidence: Evidence, kill: Event) -> Join:
    """The join of the group that was killed then."""

    def first(kind: EventKind) -> Event:
        return next(event for event in evidence.of(kind) if event.group == kill.group and event.t > kill.t)

    launched, heal = first(EventKind.GROUP_LAUNCHED), first(EventKind.HEAL)
    quorum_id, step = heal.values["quorum_id"], heal.values["step"]
    done = [line for line in commits(evidence.lines) if line.group != kill.group]
    alone = [line for line in done if begin(line) > kill.t and (line.quorum_id or 0) < quorum_id]
    # Of the step in which the group died, rounds were done already.
    alone = [line for line in alone if line.step > min(line.step for line in alone)]
    copies = map(json.loads, (evidence.out / COPIES).read_text().splitlines())
    return Join(
        calm=[line for line in alone if line.t < launched.t],
        busy=[line for line in alone if line.t > launched.t],
        healing=[line for line in done if (line.quorum_id, line.step) == (quorum_id, step)],
        copies=[copy["seconds"] for copy in copies if launched.t < copy["t"] < heal.t],
        heal=heal,
    )


def begin(line: LedgerLine) -> float:
    """When an attempt began, in seconds since the epoch."""
    return line.t - line.seconds.total


def print_table(joins: list[Join]) -> None:
    """The medians over all joins."""
    rows = [join.row() for join in joins]
    figures = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    most = max(row["longer"] for row in rows)
    rate = statistics.median(row["MB"] / row["heal"] for row in rows)
    print(f"a state of {figures['MB']:.0f} MB, medians of {len(rows)} joins, {os.cpu_count()} cores")
    for name, what in STEPS.items():
        phases = ", ".join(f"{phase} {figures[f'{phase}, {name}']:.2f}" for phase in PHASES[1:])
        print(f"{what:45} {figures[f'total, {name}']:5.2f} s ({phases})")
    print(f"{'so the others waited':45} {figures['longer']:5.2f} s, at most {most:.2f} s")
    print(f"{'a copy by a donor':45} {figures['copy']:5.2f} s")
    print(f"{'the heal':45} {figures['heal']:5.2f} s, {rate:.0f} MB/s")


def main() -> None:
    """Measure and print."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    joins = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as folder:
        print_table(joins_in(run(Path(folder) / "run", megabytes, joins)))


if __name__ == "__main__":
    # Also the training script of the groups that it starts.
    trainer() if "REPLICA_GROUP_ID" in os.environ else main()
