"""Settings: one chain of timeouts, usable values only, and what the environment may set."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.config import GroupConfig, Timeouts, number, settings_from_environment
from replica.errors import UserError

CHAIN = ("heartbeat_interval_s", "connect_s", "configure_s", "transfer_s", "collective_s", "vote_s")
NAMES = tuple(each.name for each in fields(Timeouts))
MINIMAL: dict[str, Any] = {
    "job": "job",
    "group": 0,
    "lighthouse": "h:1",
    "steps": 1,
    "micro_batches": 1,
}


@pytest.mark.parametrize("place", range(len(CHAIN) - 1))
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_each_pair_of_neighbours_in_the_wrong_order_is_refused_naming_both(place: int, factor: float) -> None:
    values = {name: float(10 * (index + 1)) for index, name in enumerate(CHAIN)}
    shorter, longer = CHAIN[place], CHAIN[place + 1]
    values[shorter] = values[longer] * factor if place + 2 == len(CHAIN) else values[longer]
    with pytest.raises(UserError) as refusal:
        Timeouts(**values)
    assert shorter in str(refusal.value)
    assert longer in str(refusal.value)


@given(st.lists(st.floats(1e-3, 9e5), min_size=len(CHAIN), max_size=len(CHAIN), unique=True))
def test_any_rising_chain_is_accepted_fractions_too(values: list[float]) -> None:
    timeouts = Timeouts(**dict(zip(CHAIN, sorted(values), strict=True)))
    assert [getattr(timeouts, name) for name in CHAIN] == sorted(values)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e6])
def test_a_value_that_is_no_duration_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"timeout {name} is"):
        Timeouts(**{name: value})


def test_the_line_for_the_log_names_every_timeout() -> None:
    line = Timeouts(connect_s=0.75).describe()
    assert "connect_s=0.75" in line
    assert "\n" not in line
    assert all(f"{name}=" in line for name in NAMES)


def test_the_defaults_are_a_valid_chain() -> None:
    assert GroupConfig(**MINIMAL).timeouts == Timeouts()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"job": ""}, "job name"),
        ({"job": "a/b"}, "job name 'a/b' is not usable"),
        ({"job": "a" * 65}, "job name"),
        ({"job": "-x"}, "job name"),
        ({"job": "x\n"}, "job name"),
        ({"group": -1}, "replica group id -1 is negative"),
        ({"steps": 0}, "steps is 0"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is"),
        ({"digest_every": -1}, "digest_every is -1"),
        ({"tls_ca": Path("ca")}, "all three of --tls-cert, --tls-key and --tls-ca"),
        ({"tls_cert": Path("c"), "tls_key": Path("k")}, "all three of --tls-cert, --tls-key and --tls-ca"),
        ({"max_nonfinite_steps": 0}, "max_nonfinite_steps is 0"),
    ],
)
def test_unusable_settings_are_refused_in_one_line(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refusal:
        GroupConfig(**(MINIMAL | wrong))
    assert "\n" not in str(refusal.value)


def test_extreme_but_usable_settings_are_accepted() -> None:
    config = GroupConfig(**(MINIMAL | {"job": "A" * 64, "group": 99, "seed": 2**64 - 1}))
    assert config.seed == 2**64 - 1


def test_environment_variables_become_settings_of_the_right_type() -> None:
    found = settings_from_environment(
        {
            "REPLICA_GROUP_ID": "2",
            "TORCHFT_LIGHTHOUSE": "http://h:1",
            "HEADWAY_JOB": "tiny",
            "HEADWAY_OUT": "/tmp/x",
            "HEADWAY_STEPS": "7",
            "HEADWAY_SEED": "9",
            "HEADWAY_ADVERTISE_ADDR": "10.0.0.1",
            "HEADWAY_METRICS_BIND": "10.0.0.1:29512",
            "HEADWAY_TOKEN_FILE": "/etc/token",
            "HEADWAY_TLS_CERT": "/etc/cert",
            "HEADWAY_TLS_KEY": "/etc/key",
            "HEADWAY_TLS_CA": "/etc/ca",
            "HOME": "/root",
        }
    )
    assert found == {
        "group": 2,
        "lighthouse": "http://h:1",
        "job": "tiny",
        "out": Path("/tmp/x"),
        "steps": 7,
        "seed": 9,
        "advertise_addr": "10.0.0.1",
        "metrics_bind": "10.0.0.1:29512",
        "token_file": Path("/etc/token"),
        "tls_cert": Path("/etc/cert"),
        "tls_key": Path("/etc/key"),
        "tls_ca": Path("/etc/ca"),
    }


def test_absent_and_empty_variables_set_nothing() -> None:
    assert settings_from_environment({"REPLICA_GROUP_ID": "", "HEADWAY_OUT": ""}) == {}


def test_group_zero_is_not_taken_for_absent() -> None:
    assert settings_from_environment({"REPLICA_GROUP_ID": "0"}) == {"group": 0}


@pytest.mark.parametrize("variable", ["REPLICA_GROUP_ID", "HEADWAY_STEPS", "HEADWAY_SEED"])
def test_a_malformed_number_is_refused_naming_the_variable(variable: str) -> None:
    with pytest.raises(UserError, match=f"{variable} is 'two': give a whole number"):
        settings_from_environment({variable: "two"})


@given(st.integers())
def test_whole_numbers_are_read(value: int) -> None:
    assert number("x", f" {value} ") == value
