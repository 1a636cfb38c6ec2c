"""torchft's own recovery test, as its wheel ships it, with our transport in place of its own.

The other transport tests of torchft look at the inside of its HTTP and process-group transports.
Ours moves tensors into a state of the same form, which every joiner has: what is no tensor is taken
from there, and a DTensor keeps its own placement.
"""

from datetime import timedelta
from typing import Any
from unittest import TestCase

import torch
from torch.distributed.tensor import DTensor
from torchft.checkpointing.transport import CheckpointTransport
from torchft.checkpointing.transport_test import make_state_dict, run_multi_recovery_test

from replica.bridge.transport import HealTransport


def local_tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a state, of a DTensor its shard."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {
        name: value.to_local() if isinstance(value, DTensor) else value for name, value in tensors.items()
    }


class WholeStates(CheckpointTransport[dict[str, Any]]):  # type: ignore[misc]
    """Our transport for states that hold more than tensors."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None
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
            self.state = make_state_dict(torch.device("cpu"))
            for tensor in local_tensors(self.state).values():
                tensor.zero_()
        return local_tensors(self.state)

    def metadata(self) -> str:
        return self.transport.metadata()

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: dict[str, Any], timeout: timedelta
    ) -> None:
        self.state, self.quorums = state_dict, self.quorums + 1
        self.transport.send_checkpoint(dst_ranks, step, state_dict, timeout)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> dict[str, Any]:
        self.state = None
        self.transport.recv_checkpoint(src_rank, metadata, step, timeout)
        assert self.state is not None
        return self.state

    def shutdown(self, wait: bool = True) -> None:
        self.transport.shutdown(wait)


def test_torchfts_multi_recovery_test_passes() -> None:
    made: list[WholeStates] = []

    def make(rank: int, world_size: int) -> WholeStates:
        made.append(WholeStates())
        return made[-1]

    run_multi_recovery_test(TestCase(), make, device=torch.device("cpu"))
    assert len(made) == 3
