"""The bridge to torchft's Manager: whose settings count, and a state that is torn is never used."""

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.bridge.manager import ManagerBridge, take_torchft_environment
from replica.bridge.transport import Heal
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


def test_a_heal_that_broke_off_half_way_ends_this_incarnation() -> None:
    bridge = object.__new__(ManagerBridge)
    transport = SimpleNamespace(heal=Heal(torn=True))
    bridge._transport = cast(Any, transport)

    def start_quorum() -> None:
        assert not transport.heal.torn  # what became of an earlier heal is forgotten
        transport.heal.torn = True

    bridge._manager = cast(Any, SimpleNamespace(start_quorum=start_quorum))
    with pytest.raises(RestartError, match="neither the old state nor the new"):
        bridge.begin()
