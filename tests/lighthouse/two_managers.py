"""Two groups of torchft's own Manager: `two_managers.py ADDRESS ID ID`. Prints what each step gave.

A program of its own, since torchft's state server leaves sockets open for the interpreter to close.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torchft

from lighthouse.client import status


def make_manager(address: str, replica_id: str) -> tuple[Any, Any]:
    """A manager and the store that it needs."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=1,
        load_state_dict=lambda _state: None,
        state_dict=dict,
        replica_id=replica_id,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        use_async_quorum=False,
        init_sync=False,
        lighthouse_addr=f"http://{address}",
        hostname="127.0.0.1",
    )
    return manager, store


def wait_until_both_are_seen(address: str) -> None:
    """A first quorum waits for whoever beats: nobody may ask before the other one has begun to."""
    deadline = time.monotonic() + 60
    while not any(job["groups_seen"] == 2 for job in status(address)["jobs"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def step(manager: Any, value: float) -> dict[str, object]:
    """One step: the average of the values, whether it committed, in which quorum."""
    manager.start_quorum()
    tensor = torch.full((4,), value)
    manager.allreduce(tensor).wait()
    committed = manager.should_commit()
    return {"average": tensor[0].item(), "committed": committed, "quorum_id": manager._quorum_id}


def main(address: str, *names: str) -> None:
    """Two steps together, then the second group leaves without a word and the first goes on."""
    pairs = [make_manager(address, name) for name in names]
    managers = [manager for manager, _ in pairs]
    wait_until_both_are_seen(address)
    with ThreadPoolExecutor(2) as both:
        first = list(both.map(step, managers, (1.0, 3.0)))
        second = list(both.map(step, managers, (2.0, 4.0)))
    managers[1].shutdown()
    alone = step(managers[0], 5.0)
    managers[0].shutdown()
    print(json.dumps({"first": first, "second": second, "alone": alone}))


if __name__ == "__main__":
    main(*sys.argv[1:])
