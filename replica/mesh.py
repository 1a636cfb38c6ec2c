"""The ranks of one replica group: their process group, device mesh, store and agreements."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from replica.error_line import one_line
from replica.errors import RestartError

STORE_KEY = "store"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """Where the store of this incarnation listens."""

    host: str
    port: int


class Ranks:
    """Rank `rank` of the `world_size` ranks that torchrun started as one replica group.

    Made from torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); without it, a
    plain `python` process is a group of one. Making it blocks until all ranks are there, at most
    `timeout_s`. All methods are collectives inside the group: every rank calls them, in the same
    order, from its training thread.
    """

    def __init__(self, *, device_type: str, timeout_s: float) -> None:
        _fill_environment_for_single_process()
        limit = timedelta(seconds=timeout_s)
        store, rank, world_size = next(rendezvous("env://", timeout=limit))
        # torchrun keeps its store when it restarts a group in place: without a prefix, a rank would
        # read the addresses that the dead incarnation left there.
        self._store = PrefixStore(f"headway/{os.environ.get(RESTART_COUNT, '0')}", store)
        self.rank, self.world_size = int(rank), int(world_size)
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=self._store, rank=self.rank, world_size=self.world_size, timeout=limit
        )
        self.mesh: DeviceMesh = init_device_mesh(device_type, (self.world_size,))
        self._own_store: TCPStore | None = None
        self._firsts = 0

    def open_store(self, host: str) -> StoreAddress:
        """Start this incarnation's own store on rank 0 and tell all ranks where it is.

        The launcher's store is not used for it: it outlives an incarnation, and its address is
        often one that only this host understands.
        """
        if self.rank == 0:
            self._own_store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            self._store.set(STORE_KEY, f"{host} {self._own_store.port}")
        with sibling_death_ends_the_group():
            host, port = self._store.get(STORE_KEY).decode().split()
        return StoreAddress(host=host, port=int(port))

    def first_then_all(self, action: Callable[[], None], *, timeout_s: float) -> None:
        """Run `action` on rank 0 while the other ranks wait, longer than a collective would allow.

        Raises what `action` raises on rank 0, and RestartError elsewhere when rank 0 is gone.
        """
        self._firsts += 1
        key = f"ready/{self._firsts}"
        if self.rank == 0:
            action()
            self._store.set(key, "")
        else:
            with sibling_death_ends_the_group():
                self._store.wait([key], timedelta(seconds=timeout_s))

    def share(
        self, values: Sequence[int], process_group: dist.ProcessGroup | None = None
    ) -> list[tuple[int, ...]]:
        """All-gather a few 64-bit integers: the result holds each rank's values, in rank order.

        process_group: one of all ranks with a timeout of its own, where they may differ by long waits.
        Raises RestartError when a sibling rank is gone.
        """
        mine = torch.tensor(list(values), dtype=torch.int64)
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        with sibling_death_ends_the_group():
            dist.all_gather(gathered, mine, group=process_group)
        return [tuple(int(value) for value in row.tolist()) for row in gathered]

    def mean(self, value: float) -> float:
        """Mean of one float64 over the ranks, added up in rank order. Raises RestartError."""
        mine = torch.tensor([value], dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        with sibling_death_ends_the_group():
            dist.all_gather(gathered, mine)
        return sum((float(row) for row in gathered), 0.0) / self.world_size

    def close(self) -> None:
        """Leave the group's process group. Other ranks may still be in it."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._own_store = None


@contextmanager
def sibling_death_ends_the_group() -> Iterator[None]:
    """Turn the failure of a collective inside the group into RestartError: a rank of it is gone."""
    try:
        yield
    except RuntimeError as error:
        raise RestartError(
            f"a rank of this replica group is gone, and what it said last tells why ({one_line(error)})"
        ) from error


def _fill_environment_for_single_process() -> None:
    """Outside torchrun, be a group of one on a port that the system chooses."""
    if "RANK" in os.environ:
        return
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
