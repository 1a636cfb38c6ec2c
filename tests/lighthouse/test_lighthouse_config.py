"""Settings: both spellings, the defaults, and what is refused with one sentence."""

from dataclasses import fields
from pathlib import Path

import pytest

from lighthouse.address import HostPort
from lighthouse.config import ConfigError, LighthouseConfig, parse_serve


def test_defaults() -> None:
    assert parse_serve([]) == LighthouseConfig()
    assert LighthouseConfig().bind == HostPort(host="::", port=29510)
    assert LighthouseConfig().heartbeat_timeout_s == 5.0


def test_dashes_and_underscores_are_the_same() -> None:
    flags = ["min-replicas=2", "quorum-tick-ms=50", "join-timeout-ms=10000", "heartbeat-timeout-ms=900"]
    dashes = parse_serve([f"--{flag}" for flag in flags])
    underscores = parse_serve([f"--{flag.replace('-', '_')}" for flag in flags])
    assert dashes == underscores
    assert (dashes.min_replicas, dashes.quorum_tick_s) == (2, 0.05)
    assert (dashes.join_timeout_s, dashes.heartbeat_timeout_s) == (10.0, 0.9)


def test_every_flag_reaches_its_setting() -> None:
    numbers = [field.name for field in fields(LighthouseConfig) if isinstance(field.default, int)]
    wanted = {name: 60_000 + place for place, name in enumerate(numbers)} | {"quorum_tick_ms": 77}
    wanted |= {"min_replicas": 3, "expected_groups": 5}
    config = parse_serve([f"--{name.replace('_', '-')}={value}" for name, value in wanted.items()])
    assert {name: getattr(config, name) for name in numbers} == wanted
    assert len(numbers) == 8


def test_files_for_access_reach_their_settings() -> None:
    flags = ["token-file=t", "tls-cert=c", "tls-key=k", "tls-ca=a", "tls-bind=h:7"]
    config = parse_serve([f"--{flag}" for flag in flags])
    assert (config.token_file, config.tls_cert, config.tls_key) == (Path("t"), Path("c"), Path("k"))
    assert (config.tls_ca, str(config.tls_bind)) == (Path("a"), "h:7")
    assert config == parse_serve([f"--{flag.replace('-', '_')}" for flag in flags])


def test_a_port_for_tls_that_is_not_used_conflicts_with_none() -> None:
    assert parse_serve(["--bind", "[::]:29512"]).bind.port == 29512


def test_none_switches_off() -> None:
    config = parse_serve(["--http-bind", "none", "--state_dir", "none"])
    assert config.http_bind is None
    assert config.state_dir is None
    assert parse_serve(["--state-dir", "x"]).state_dir == Path("x")


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--min-replicas", "0"], ["--min-replicas"]),
        (["--min-replicas", "x"], ["--min-replicas"]),
        (["--expected-groups", "-1"], ["--expected-groups"]),
        (["--join-timeout-ms", "-1"], ["--join-timeout-ms"]),
        (["--quorum-tick-ms", "0"], ["--quorum-tick-ms"]),
        (["--heartbeat-timeout-ms", "99999999999"], ["--heartbeat-timeout-ms"]),
        (["--quorum-tick-ms", "9", "--heartbeat-timeout-ms", "8"], ["tick-ms 9", "timeout-ms 8"]),
        (["--expected-groups", "2", "--min-replicas", "3"], ["expected-groups 2", "min-replicas 3"]),
        (["--progress-limit-factor", "0"], ["--progress-limit-factor"]),
        (["--progress-limit-floor-ms", "0"], ["--progress-limit-floor-ms"]),
        (["--heal-deadline-ms", "7"], ["heal-deadline-ms 7", "limit-floor-ms 30000"]),
        (["--bind", "[::]:5", "--http-bind", "[::]:5"], ["--bind", "--http-bind"]),
        (["--tls-cert", "c", "--tls-key", "k", "--tls-bind", "[::]:29511"], ["--http-bind", "--tls-bind"]),
        (["--tls-ca", "a"], ["--tls-ca is given without --tls-cert"]),
        (["--tls-bind", "nonsense"], ["malformed address 'nonsense'"]),
        (["--tls-bind", "[::]:7"], ["--tls-bind is given without --tls-cert and --tls-key"]),
        (["--bind", "nonsense"], ["malformed address 'nonsense'"]),
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--min-rep", "2"], ["--min-rep"]),
    ],
)
def test_refused_with_one_sentence_that_names_the_flags(flags: list[str], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_serve(flags)
    assert "\n" not in str(caught.value)
    for name in names:
        assert name in str(caught.value)


def test_two_free_ports_do_not_conflict() -> None:
    config = parse_serve(["--bind", "[::]:0", "--http-bind", "[::]:0"])
    assert config.bind.port == 0
