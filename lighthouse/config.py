"""The settings of `serve`: read from the command line, validated in one place."""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lighthouse.address import HostPort, parse_host_port

DEFAULT_BIND = HostPort(host="::", port=29510)
DEFAULT_HTTP_BIND = HostPort(host="::", port=29511)
DEFAULT_TLS_BIND = HostPort(host="::", port=29512)
_MAX_TIMEOUT_MS = 24 * 3600 * 1000


class ConfigError(Exception):
    """A setting that cannot be. Its text is one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LighthouseConfig:
    """All settings of a Lighthouse.

    `http_bind` None: no status server. `state_dir` None: nothing is kept on disk.
    `expected_groups` 0: none in particular. `token_file` None: anybody may join and act. `tls_cert` None:
    TLS is not spoken; with it, our own service is served on `tls_bind`, and with `tls_ca` to holders of a
    certificate of that CA only. Raises ConfigError on values that cannot be, and on
    two that conflict.
    """

    bind: HostPort = DEFAULT_BIND
    http_bind: HostPort | None = DEFAULT_HTTP_BIND
    min_replicas: int = 1
    expected_groups: int = 0
    join_timeout_ms: int = 60_000
    quorum_tick_ms: int = 100
    heartbeat_timeout_ms: int = 5_000
    progress_limit_factor: int = 10
    progress_limit_floor_ms: int = 30_000
    heal_deadline_ms: int = 120_000
    state_dir: Path | None = Path("lighthouse-state")
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tls_bind: HostPort = DEFAULT_TLS_BIND

    def __post_init__(self) -> None:
        _in_range("--min-replicas", self.min_replicas, 1, 100_000)
        _in_range("--expected-groups", self.expected_groups, 0, 100_000)
        _in_range("--join-timeout-ms", self.join_timeout_ms, 0, _MAX_TIMEOUT_MS)
        _in_range("--quorum-tick-ms", self.quorum_tick_ms, 1, 60_000)
        _in_range("--heartbeat-timeout-ms", self.heartbeat_timeout_ms, 1, _MAX_TIMEOUT_MS)
        _in_range("--progress-limit-factor", self.progress_limit_factor, 1, 100_000)
        _in_range("--progress-limit-floor-ms", self.progress_limit_floor_ms, 1, _MAX_TIMEOUT_MS)
        _in_range("--heal-deadline-ms", self.heal_deadline_ms, 1, _MAX_TIMEOUT_MS)
        if self.heal_deadline_ms < self.progress_limit_floor_ms:
            raise ConfigError(
                f"--heal-deadline-ms {self.heal_deadline_ms} is shorter than --progress-limit-floor-ms "
                f"{self.progress_limit_floor_ms}: a heal takes longer than a step, raise the one or lower "
                "the other"
            )
        if self.quorum_tick_ms > self.heartbeat_timeout_ms:
            raise ConfigError(
                f"--quorum-tick-ms {self.quorum_tick_ms} is longer than --heartbeat-timeout-ms "
                f"{self.heartbeat_timeout_ms}: deaths would be seen late, make the tick shorter"
            )
        if 0 < self.expected_groups < self.min_replicas:
            raise ConfigError(
                f"--expected-groups {self.expected_groups} is less than --min-replicas "
                f"{self.min_replicas}: the job could never start, lower one or raise the other"
            )
        if self.tls_ca is not None and self.tls_cert is None:
            raise ConfigError("--tls-ca is given without --tls-cert and --tls-key: give all three, or none")
        self._check_ports()

    def _check_ports(self) -> None:
        binds = {"--bind": self.bind, "--http-bind": self.http_bind}
        binds["--tls-bind"] = None if self.tls_cert is None else self.tls_bind
        given = [(flag, bind) for flag, bind in binds.items() if bind is not None and bind.port != 0]
        for (flag, bind), (other_flag, other) in itertools.combinations(given, 2):
            if bind.port == other.port:
                raise ConfigError(f"{flag} {bind} and {other_flag} {other} have the same port: choose two")

    @property
    def join_timeout_s(self) -> float:
        """How long a quorum waits for those that live and do not ask."""
        return self.join_timeout_ms / 1000

    @property
    def quorum_tick_s(self) -> float:
        """How often the decision is looked at when nothing happens."""
        return self.quorum_tick_ms / 1000

    @property
    def heartbeat_timeout_s(self) -> float:
        """After what silence a replica counts as dead."""
        return self.heartbeat_timeout_ms / 1000


def _in_range(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{flag} {value} is out of range: want {low} to {high}")


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaint is one sentence, raised as ConfigError."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise ConfigError(f"{message}; see `{self.prog} --help`")


# Flag, default, help; all whole numbers.
_NUMBERS = (
    ("min-replicas", "the smallest quorum"),
    ("expected-groups", "how many groups a job's first quorum waits for, at most the join timeout"),
    ("join-timeout-ms", "how long a quorum waits for a replica that lives and does not ask"),
    ("quorum-tick-ms", "how often the decision is looked at when nothing happens"),
    ("heartbeat-timeout-ms", "after what silence a replica counts as dead"),
    ("progress-limit-factor", "after how many typical steps a group that stands still is counted out"),
    ("progress-limit-floor-ms", "the shortest time that a group may stand still while others wait"),
    ("heal-deadline-ms", "how long a heal may take while others wait"),
)


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `serve`, each spelled with dashes or with torchft's underscores."""
    defaults = LighthouseConfig()
    _add(parser, "bind", str, str(defaults.bind), "where gRPC is served, port 0 for any free one")
    _add(parser, "http-bind", str, str(defaults.http_bind), "where status and metrics are served, or none")
    for name, text in _NUMBERS:
        _add(parser, name, int, getattr(defaults, name.replace("-", "_")), text)
    _add(
        parser,
        "state-dir",
        str,
        str(defaults.state_dir),
        "what must outlive the server is kept here, or none",
    )
    # Without a default of its own, since it is not to be given where TLS is not spoken.
    text = f"where our own service is served over TLS, with --tls-cert ({defaults.tls_bind})"
    parser.add_argument("--tls-bind", "--tls_bind", metavar="TLS_BIND", help=text)
    add_access_arguments(parser)


def add_access_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that a server and its callers have in common: token and certificates."""
    _add_file(parser, "token-file", "file with the job's secret")
    _add_file(parser, "tls-cert", "certificate of this side, in PEM form")
    _add_file(parser, "tls-key", "its key")
    _add_file(parser, "tls-ca", "CA that the other side's certificate must be of")


def _add_file(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    spellings = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
    parser.add_argument(*spellings, type=Path, metavar="F", help=f"{text} (none)")


def _add(parser: argparse.ArgumentParser, name: str, kind: type, default: object, text: str) -> None:
    spellings = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
    metavar = "N" if kind is int else name.upper().replace("-", "_")
    parser.add_argument(*spellings, type=kind, default=default, metavar=metavar, help=f"{text} (%(default)s)")


def config_from(arguments: argparse.Namespace) -> LighthouseConfig:
    """The settings that the flags of `add_serve_arguments` give. Raises ConfigError."""
    try:
        bind = parse_host_port(arguments.bind)
        http_bind = None if arguments.http_bind == "none" else parse_host_port(arguments.http_bind)
        tls_bind = parse_host_port(arguments.tls_bind or str(DEFAULT_TLS_BIND))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if arguments.tls_bind is not None and arguments.tls_cert is None:
        raise ConfigError("--tls-bind is given without --tls-cert and --tls-key: give all three, or none")
    return LighthouseConfig(
        bind=bind,
        http_bind=http_bind,
        min_replicas=arguments.min_replicas,
        expected_groups=arguments.expected_groups,
        join_timeout_ms=arguments.join_timeout_ms,
        quorum_tick_ms=arguments.quorum_tick_ms,
        heartbeat_timeout_ms=arguments.heartbeat_timeout_ms,
        progress_limit_factor=arguments.progress_limit_factor,
        progress_limit_floor_ms=arguments.progress_limit_floor_ms,
        heal_deadline_ms=arguments.heal_deadline_ms,
        state_dir=None if arguments.state_dir == "none" else Path(arguments.state_dir),
        token_file=arguments.token_file,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        tls_ca=arguments.tls_ca,
        tls_bind=tls_bind,
    )


def parse_serve(flags: Sequence[str]) -> LighthouseConfig:
    """Settings from a list of flags. Raises ConfigError."""
    parser = OneLineParser(prog="lighthouse serve", allow_abbrev=False)
    add_serve_arguments(parser)
    return config_from(parser.parse_args(flags))
