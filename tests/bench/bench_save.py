"""How long a save keeps training waiting, and how much it slows it down: ours beside torch's own.

    python tests/bench/bench_save.py [MEGABYTES] [ROUNDS] [FOLDER]

One process holds a state of float32 tensors on the CPU (parameters and AdamW's, 500 MB together by
default). Each contender saves it to a local folder, one after the other, round after round; every one
of them syncs its files. Printed are medians: seconds for which the caller was blocked, as multiples of
a plain copy of the same memory, seconds until all was on disk, and the rate of a compute loop meanwhile,
as a share of its rate right before. Values are changed as soon as a contender lets its caller go on:
the last column says whether the save holds those of the moment at which it was asked for.
"""

import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from replica.backstop import Backstop, Boundary, Facts, SaveName, Store
from replica.backstop.reading import read_save
from replica.config import BackstopConfig
from replica.mesh import Ranks
from replica.state import TrainingState

TENSORS = 20
QUIET_S = 1.0
# Begins a save of step N, and returns what tells whether it is on disk.
Begin = Callable[[int], Callable[[], bool]]


@dataclass(kw_only=True)
class Contender:
    """One way to save: `begin` blocks as long as it must; `first` reads a value of the save back."""

    name: str
    begin: Begin
    first: Callable[[int], float | None]
    blocked_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)


class Bench:
    """The state, and all ways to save it below one folder."""

    def __init__(self, megabytes: int, folder: Path) -> None:
        self.folder = folder
        self.ranks = Ranks(device_type="cpu", timeout_s=600)
        size = megabytes * 1_000_000 // 4 // 3 // TENSORS  # AdamW has two more of each
        self.model = nn.ParameterDict({f"w{n}": nn.Parameter(torch.rand(size)) for n in range(TENSORS)})
        self.state = TrainingState(self.model, torch.optim.AdamW(self.model.parameters()))
        self.buffer = {name: tensor.clone() for name, tensor in self.state.tensors().items()}
        self.saved_steps: list[int] = []
        self.backstop = Backstop(
            config=BackstopConfig(url=str(folder / "ours"), every_steps=1, keep=1),
            job="bench",
            group=0,
            incarnation="00000001",
            last_step=1 << 30,
            ranks=self.ranks,
            state=self.state,
            facts=self.facts,
            on_saved=lambda saved: self.saved_steps.append(saved.name.step),
            on_failed=lambda step, reason: sys.exit(f"the save of step {step} failed: {reason}"),
            on_late=lambda step, since_s: None,
        )

    def facts(self, digest: str) -> Facts:
        """Facts of a save that nobody reads."""
        names = dict.fromkeys(("job", "incarnation", "mode", "fingerprint", "platform"), "bench")
        numbers = {"group": 0, "group_world_size": 1, "layout": 0, "saved_at_s": time.time()}
        return Facts(digest=None, configuration={}, **names, **numbers)  # type: ignore[arg-type]

    def contenders(self) -> list[Contender]:
        """All ways to save, in the order in which they take turns."""
        thread, process = AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS
        return [
            Contender(name="a plain copy of memory", begin=self.copy, first=lambda step: None),
            Contender(name="ours", begin=self.ours, first=self.first_of_ours),
            Contender(name="dcp.save", begin=self.dcp_save, first=self.first_of_dcp),
            Contender(name="dcp.async_save, thread", begin=self.dcp_async(thread), first=self.first_of_dcp),
            Contender(name="dcp.async_save, process", begin=self.dcp_async(process), first=self.first_of_dcp),
        ]

    def copy(self, step: int) -> Callable[[], bool]:
        """Copy the state into memory that is there already."""
        for name, tensor in self.state.tensors().items():
            self.buffer[name].copy_(tensor)
        return lambda: True

    def ours(self, step: int) -> Callable[[], bool]:
        """Save as a replica group does after a commit."""
        self.backstop.after_commit(Boundary(step=step, quorum_id=1, owners=frozenset({0}), digest=""))
        return lambda: step in self.saved_steps

    def first_of_ours(self, step: int) -> float:
        store = Store(str(self.folder / "ours"), "bench")
        (save,) = store.listed()
        assert save == store.listed()[0]
        assert getattr(save, "name", None) == SaveName(step=step, quorum_id=1, incarnation="00000001")
        read_save(store, save, self.buffer, process_group=None, rank=0, world_size=1)  # type: ignore[arg-type]
        return float(self.buffer["parameter.w0"][0])

    def dcp_save(self, step: int) -> Callable[[], bool]:
        """Save as torch does in the foreground."""
        dcp.save(self.state.tensors(), checkpoint_id=self.folder / "dcp" / str(step))
        return lambda: True

    def dcp_async(self, kind: AsyncCheckpointerType) -> Begin:
        """Save as torch does in the background."""

        def begin(step: int) -> Callable[[], bool]:
            where = self.folder / "dcp" / str(step)
            future: Any = dcp.async_save(
                self.state.tensors(), checkpoint_id=where, async_checkpointer_type=kind
            )
            return lambda: future.done() and future.result() is not None

        return begin

    def first_of_dcp(self, step: int) -> float:
        where = self.folder / "dcp" / str(step)
        wanted = {"parameter.w0": self.buffer["parameter.w0"]}
        dcp.load(wanted, checkpoint_id=where)
        shutil.rmtree(where)
        return float(wanted["parameter.w0"][0])

    def run_once(self, contender: Contender, step: int) -> None:
        """Save once, compute until it is on disk, and write down what that took."""
        quiet = compute(lambda: False, at_least_s=QUIET_S)
        first = self.state.tensors()["parameter.w0"]
        before = float(first[0])
        began_s = time.monotonic()
        is_done = contender.begin(step)
        contender.blocked_s.append(time.monotonic() - began_s)
        first.add_(1.0)
        if not is_done():
            contender.rate.append(compute(is_done) / quiet)
        contender.total_s.append(time.monotonic() - began_s)
        if (kept := contender.first(step)) is not None:
            contender.kept.append(kept == before)


def compute(is_done: Callable[[], bool], at_least_s: float = 0.0) -> float:
    """Steps per second of a compute loop of one thread, which goes on until `is_done`, or for so long."""
    weight, steps, began_s = torch.rand(256, 256), 0, time.monotonic()
    while not (is_done() or (at_least_s and time.monotonic() - began_s >= at_least_s)):
        (weight @ weight).sum()
        steps += 1
    return steps / (time.monotonic() - began_s)


def print_table(entries: list[Contender]) -> None:
    """A line for each contender."""
    copy_s = statistics.median(entries[0].blocked_s)
    for entry in entries:
        blocked_s, total_s = statistics.median(entry.blocked_s), statistics.median(entry.total_s)
        line = f"{entry.name:26} blocked {blocked_s:7.3f} s, {blocked_s / copy_s:6.2f} copies"
        if entry.kept:
            right = "the right values" if all(entry.kept) else "VALUES OF LATER STEPS"
            line += f"; on disk after {total_s:6.2f} s, with {right}"
        if entry.rate:
            line += f"; meanwhile compute at {statistics.median(entry.rate):4.2f} of its rate"
        print(line)


def main() -> None:
    """Measure all contenders in turn and print a line for each."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's own
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as folder:
        bench = Bench(megabytes, Path(folder))
        entries, step = bench.contenders(), 0
        for number in range(rounds + 1):  # the first round makes what is made once
            for entry in entries:
                step += 1
                bench.run_once(entry, step)
                if number == 0:
                    for figures in (entry.blocked_s, entry.total_s, entry.rate):
                        figures.clear()
        nbytes = bench.state.bytes
        print(f"a state of {nbytes / 1e6:.0f} MB, medians of {rounds} rounds")
        print_table(entries)
        bench.ranks.close()


if __name__ == "__main__":
    main()
