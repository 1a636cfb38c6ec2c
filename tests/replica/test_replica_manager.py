"""The bridge to torchft's Manager: whose settings count, and what it tells of the heal of an attempt."""

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.bridge import manager
from replica.bridge.manager import ManagerBridge, take_torchft_environment
from replica.bridge.transport import Heal
from replica.config import GroupConfig, Timeouts
from replica.errors import RestartError

NAMES = st.sampled_from(["TORCHFT_TIMEOUT_SEC", "TORCHFT_LIGHTHOUSE", "TORCHFT_", "TORCH_HOME", "XTORCHFT_A"])


@given(st.dictionaries(NAMES, st.text(max_size=3)))
def test_all_and_only_torchfts_variables_are_taken_away(environment: dict[str, str]) -> None:
    left = dict(environment)
    take_torchft_environment(left)
    assert left == {
        name: value for name, value in environment.items() if name in ("TORCH_HOME", "XTORCHFT_A")
    }


def test_it_works_on_the_real_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_QUORUM_TIMEOUT_SEC", "1")
    take_torchft_environment()
    assert "TORCHFT_QUORUM_TIMEOUT_SEC" not in os.environ


def test_what_became_of_an_earlier_heal_is_forgotten_and_of_this_one_told() -> None:
    bridge = object.__new__(ManagerBridge)
    bridge._seen_quorum_id = -1
    transport = SimpleNamespace(heal=Heal(torn=True), stage_for_joiners=lambda step: None)
    bridge._transport = cast(Any, transport)
    bridge.process_group = cast(Any, SimpleNamespace(peers=(), usable=True))

    def start_quorum() -> None:
        assert transport.heal == Heal()
        transport.heal.refused = True

    manager = SimpleNamespace(
        start_quorum=start_quorum, current_step=lambda: 3, _quorum_id=7, errored=lambda: None
    )
    bridge._manager = cast(Any, manager)
    start = bridge.begin()
    assert (start.quorum_id, start.changed, start.heal) == (7, True, Heal(refused=True))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            TimeoutError("deadline"),
            "the Lighthouse at h:1 gave no quorum for 600 s: `python -m lighthouse status h:1` tells what it "
            "waits for",
        ),
        (RuntimeError("closed\nframe 7"), "rank 0 of this group is gone (RuntimeError: closed)"),
    ],
)
def test_why_there_is_no_quorum_is_said_in_one_line(error: Exception, said: str) -> None:
    def start_quorum() -> None:
        raise error

    bridge = object.__new__(ManagerBridge)
    bridge._transport = cast(Any, SimpleNamespace())
    bridge._timeouts, bridge._lighthouse = Timeouts(), "h:1"
    bridge._manager = cast(Any, SimpleNamespace(start_quorum=start_quorum))
    with pytest.raises(RestartError) as raised:
        bridge.begin()
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("rank", "who"), [(0, "the Lighthouse went away"), (1, "rank 0 of this group ended")]
)
def test_who_went_away_during_the_start_depends_on_whom_the_rank_asks(
    monkeypatch: pytest.MonkeyPatch, rank: int, who: str
) -> None:
    def make(*args: object) -> None:
        raise RuntimeError("Connection closed")

    for name in ("HealTransport", "CrossGroupProcessGroup"):
        monkeypatch.setattr(manager, name, lambda **settings: None)
    monkeypatch.setattr(ManagerBridge, "_make_manager", make)
    config = GroupConfig(job="j", group=0, lighthouse="h:1", steps=1, micro_batches=1)
    nothing: dict[str, Any] = dict.fromkeys(("store", "held", "own", "fresh", "on_served"))
    with pytest.raises(RestartError, match=f"{who} during the start .*Connection closed"):
        ManagerBridge(
            config=config,
            ranks=cast(Any, SimpleNamespace(rank=rank)),
            advertise_addr="127.0.0.1",
            signature=1,
            **nothing,
        )
