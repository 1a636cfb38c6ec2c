"""torchft's own transport tests, as its wheel ships them, with our transport where they apply.

Ours moves tensors into a state of the same form, which every joiner has: what is no tensor is taken
from there, and a DTensor keeps its own placement.
"""

import ast
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest
import torch
import torchft.checkpointing
from torch.distributed.tensor import DTensor
from torchft.checkpointing.transport import CheckpointTransport
from torchft.checkpointing.transport_test import (
    assertStateDictEqual,
    make_state_dict,
    run_multi_recovery_test,
)

from replica.bridge.transport import HealFailedError, HealTransport

State = dict[str, Any]
TIMEOUT = timedelta(seconds=10)

# Every test in the wheel's folder of transports, and what becomes of it here.
SHIPPED = {
    "test_multi_http_transport_cpu": "calls run_multi_recovery_test, which runs below",
    "test_multi_http_transport_cuda": "the same, on a GPU; runs below where there is one",
    "test_pg_transport_gloo": "calls run_multi_recovery_test, which runs below",
    "test_pg_transport_baby_nccl": "calls it over NCCL, which we do not use between groups",
    "test_pg_transport_baby_nccl_inplace": "the same, into tensors that are there, as ours always does",
    "test_checkpoint_server": "expects the exceptions of urllib; below with ours in their place",
    "test_checkpoint_server_locking": "looks at the HTTP server's lock; ours serves a copy and has none",
    "test_benchmark": "runs the benchmark of the HTTP server",
    "test_r_lock_timeout": "tests that lock",
    "test_w_lock_timeout": "tests that lock",
    "test_w_locked": "tests that lock",
}


def local_tensors(state: State) -> dict[str, torch.Tensor]:
    """The tensors of a state, of a DTensor its shard."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {
        name: value.to_local() if isinstance(value, DTensor) else value for name, value in tensors.items()
    }


class WholeStates(CheckpointTransport[dict[str, Any]]):  # type: ignore[misc]
    """Our transport for states that hold more than tensors."""

    def __init__(self, make: Callable[[], State]) -> None:
        self.make = make
        self.state: State | None = None
        self.quorums = 0
        self.transport = HealTransport(
            timeout_s=10.0,
            advertise_addr="127.0.0.1",
            own=self.own,
            fresh=lambda: True,
            on_served=lambda served: None,
            quorum_id=lambda: self.quorums,
        )

    def own(self) -> dict[str, torch.Tensor]:
        if self.state is None:
            self.state = self.make()
            for tensor in local_tensors(self.state).values():
                tensor.zero_()
        return local_tensors(self.state)

    def metadata(self) -> str:
        return self.transport.metadata()

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: State, timeout: timedelta) -> None:
        self.state, self.quorums = state_dict, self.quorums + 1
        self.transport.send_checkpoint(dst_ranks, step, state_dict, timeout)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> State:
        self.state = None
        self.transport.recv_checkpoint(src_rank, metadata, step, timeout)
        assert self.state is not None
        return self.state

    def shutdown(self, wait: bool = True) -> None:
        self.transport.shutdown(wait)


def found_in_wheel() -> set[str]:
    """The names of all tests in the wheel's folder of transports."""
    folder = Path(torchft.checkpointing.__path__[0])
    trees = [ast.parse(path.read_text()) for path in folder.glob("*_test.py")]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {function.name for function in functions if function.name.startswith("test_")}


def test_of_every_shipped_test_it_is_known_what_becomes_of_it() -> None:
    assert found_in_wheel() == set(SHIPPED)


@pytest.mark.parametrize("kind", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_torchfts_multi_recovery_test_passes(kind: str) -> None:
    device = torch.device(kind)
    made: list[WholeStates] = []

    def make(rank: int, world_size: int) -> WholeStates:
        made.append(WholeStates(lambda: make_state_dict(device)))
        return made[-1]

    run_multi_recovery_test(TestCase(), make, device=device)
    assert len(made) == 3


def test_torchfts_checkpoint_server_test_with_our_exceptions() -> None:
    def make() -> State:
        return {"state": "dict", "tensor": torch.rand(5, 2), "cuda": torch.rand(2, 3)}

    server, expected = WholeStates(make), make()
    server.send_checkpoint(dst_ranks=[], step=1234, state_dict=expected, timeout=TIMEOUT)
    metadata = server.metadata()
    out = server.recv_checkpoint(src_rank=0, metadata=metadata, step=1234, timeout=TIMEOUT)
    assertStateDictEqual(TestCase(), out, expected)
    server.send_checkpoint(dst_ranks=[], step=1234, state_dict=expected, timeout=TIMEOUT)
    with pytest.raises(TimeoutError, match="timed out"):
        server.recv_checkpoint(src_rank=0, metadata=metadata, step=1234, timeout=timedelta(seconds=0.0))
    server.send_checkpoint(dst_ranks=[], step=2345, state_dict=expected, timeout=TIMEOUT)
    with pytest.raises(HealFailedError, match="it is at step 2345, not 1234"):
        server.recv_checkpoint(src_rank=0, metadata=metadata, step=1234, timeout=TIMEOUT)
    server.shutdown()
