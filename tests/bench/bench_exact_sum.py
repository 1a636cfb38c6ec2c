"""What an order-free sum costs: exact mode beside fast mode, alone and in whole clusters.

    python tests/bench/bench_exact_sum.py [PAIRS]

First the work of one rank in one step, on gradients of the default model: time and memory per
element of its shard, and the bytes that it sends. Then PAIRS of clusters (3 by default, 0 for none) of three
groups of two ranks each, exact and fast in turn, of which the median time of a step counts.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from replica.averaging import GradientSum, gradient_sum
from replica.config import Mode
from train.cluster.local_cluster import LocalCluster
from train.config import JobConfig
from train.config_reading import load_config
from train.data import open_dataset
from train.model import build_model, loss_of

DEFAULT = Path(__file__).parents[2] / "train" / "configs" / "default.toml"
GROUPS, RANKS, STEPS, WARM_UP_STEPS = 3, 2, 40, 5
ROUNDS = 6
REPEATS = 100

Gradients = Mapping[str, torch.Tensor]


class TwoGroups:
    """All-reduce with a second group, of which only the windows' places matter."""

    def __init__(self) -> None:
        self.places: torch.Tensor | None = None
        self.bytes = 0

    def max_in_place(self, tensor: torch.Tensor) -> None:
        """The maximum with the places of the sum that was here first."""
        self.bytes += tensor.nbytes
        if self.places is None:
            self.places = tensor.clone()
        torch.maximum(tensor, self.places, out=tensor)

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """Nothing is added: this costs the same in both modes, but for the bytes."""
        self.bytes += tensor.nbytes


def shards_of_gradients(config: JobConfig, count: int) -> list[Gradients]:
    """Gradients of `count` micro-batches, of each parameter the part that a first of two ranks holds."""
    model, dataset = build_model(config.model, config.job.seed), open_dataset(config)
    samples, found = config.data.samples_per_micro_batch, []
    for number in range(count):
        inputs, targets = dataset.read(range(number * samples, (number + 1) * samples))
        model.zero_grad(set_to_none=True)
        loss_of(model(inputs), targets).backward()
        found.append({name: each.grad.chunk(RANKS)[0].clone() for name, each in model.named_parameters()})
    return found


def ns_of_parts(mode: Mode, gradients: list[Gradients]) -> dict[str, float]:
    """Nanoseconds per element of each part of a step, the best of REPEATS; and bytes per element."""
    parameters = {name: nn.Parameter(torch.zeros_like(each)) for name, each in gradients[0].items()}
    one, peers = gradient_sum(mode, parameters, ROUNDS), TwoGroups()
    step_of(one, peers, parameters, gradients[2:])
    peers.bytes = 0
    size = sum(each.numel() for each in parameters.values())
    steps = [step_of(one, peers, parameters, gradients[:2]) for _ in range(REPEATS)]
    best = {part: min(step[part] for step in steps) / size * 1e9 for part in steps[0]}
    return {
        **best,
        "all": sum(best.values()),
        "wire": peers.bytes / REPEATS / size,
        "memory": one.bytes / size,
        "all_ms": sum(best.values()) * size / 1e6,
    }


def step_of(
    one: GradientSum, peers: TwoGroups, parameters: Mapping[str, nn.Parameter], gradients: list[Gradients]
) -> dict[str, float]:
    """Run the part of a step that is about gradients; seconds by what was done."""
    seconds = {}

    def timed(part: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        seconds[part] = time.perf_counter() - start

    one.reset()
    for index, part in enumerate(("first add", "second add")):
        for name, parameter in parameters.items():
            parameter.grad = gradients[index][name]
        timed(part, lambda index=index: one.add_round(index, 0.0))
    timed("reduce", lambda: one.reduce(peers))
    timed("mean", one.write_mean)
    timed("reset", one.reset)
    for parameter in parameters.values():
        parameter.grad = None
    return seconds


def step_s(mode: Mode, out: Path) -> float:
    """Median seconds of a step in a cluster that nobody disturbs."""
    with LocalCluster(
        out=out,
        groups=GROUPS,
        ranks=RANKS,
        steps=STEPS,
        mode=mode,
        config=DEFAULT,
        overrides={"run.digest_every": "0"},
    ) as cluster:
        cluster.wait()
    lines = [
        json.loads(line)
        for file in (out / "ledger").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    return statistics.median(
        line["seconds"]["total"]
        for line in lines
        if line["outcome"] == "committed" and line["step"] >= WARM_UP_STEPS
    )


def compare_alone() -> None:
    """Print the work of one rank in both modes, and their ratio."""
    torch.set_num_threads(1)
    gradients = shards_of_gradients(load_config(DEFAULT, {}), 4)
    exact, fast = (ns_of_parts(mode, gradients) for mode in (Mode.EXACT, Mode.FAST))
    parts = [part for part in exact if part not in ("wire", "memory", "all_ms")]
    for name, of in (("exact", exact), ("fast", fast)):
        times = ", ".join(f"{part} {of[part]:.2f}" for part in parts)
        print(f"{name:6} ns per element: {times}; that is {of['all_ms']:.2f} ms per step and rank")
        print(f"{name:6} bytes per element: on the wire {of['wire']:.2f}, in memory {of['memory']:.2f}")
    print(f"exact sends {exact['wire'] / fast['wire']:.3f} times the bytes of fast", flush=True)


def compare_clusters(pairs: int) -> None:
    """Print the median step of both modes, pair by pair, and the median of their ratios."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            exact, fast = (step_s(mode, Path(folder) / f"{mode}-{pair}") for mode in (Mode.EXACT, Mode.FAST))
            ratios.append(exact / fast)
            print(f"median step: exact {exact:.3f} s, fast {fast:.3f} s, ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio of {pairs} pairs: {statistics.median(ratios):.3f}", flush=True)


def main() -> None:
    """Measure both and print a line for each."""
    compare_alone()
    if pairs := int(sys.argv[1]) if len(sys.argv) > 1 else 3:
        compare_clusters(pairs)


if __name__ == "__main__":
    main()
