"""The bridge to torchft's Manager: settings of the environment must not beat ours."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.bridge.manager import take_torchft_environment

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
