"""Settings of a replica group: what the job is, where its Lighthouse is, and every timeout."""

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from lighthouse.address import parse_address, parse_host_port
from replica.errors import UserError

DEFAULT_SAVE_EVERY_STEPS = 50
# The address that stands for "there is no Lighthouse".
NO_LIGHTHOUSE = "none"
_PATHS = ("out", "token_file", "tls_cert", "tls_key", "tls_ca")
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Mode(StrEnum):
    """How gradients are added up: free of order, or as plain floating-point numbers."""

    EXACT = "exact"
    FAST = "fast"


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Every deadline that a replica group keeps, in seconds; fractions are accepted.

    They form one chain, checked when it is made: a beat is far shorter than any wait; a peer is
    reached (`connect_s`) before the cross-group process group gives up (`configure_s`); a heal ends
    (`transfer_s`) before those who wait for the joiner in the all-reduce lose patience
    (`collective_s`); the vote inside a group (`vote_s`) outlasts that. `lighthouse_wait_s` bounds
    how long an unreachable Lighthouse is waited for.
    """

    heartbeat_interval_s: float = 0.25
    connect_s: float = 5.0
    configure_s: float = 10.0
    transfer_s: float = 120.0
    collective_s: float = 180.0
    vote_s: float = 240.0
    lighthouse_wait_s: float = 600.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 < value < 1e6:
                raise UserError(f"timeout {each.name} is {value}: give a number of seconds above 0")
        chain = ("heartbeat_interval_s", "connect_s", "configure_s", "transfer_s", "collective_s", "vote_s")
        for shorter, longer in itertools.pairwise(chain):
            low, high = getattr(self, shorter), getattr(self, longer)
            if low >= high:
                raise UserError(
                    f"timeouts {shorter} = {low:g} and {longer} = {high:g} conflict: "
                    f"{shorter} must be shorter than {longer}"
                )

    def describe(self) -> str:
        """All timeouts on one line, for the log at start."""
        return ", ".join(f"{each.name}={getattr(self, each.name):g}" for each in fields(self))


@dataclass(frozen=True, kw_only=True)
class BackstopConfig:
    """Where saves go and when they are made. They are read only when no group of the job is left.

    url: a local folder, or anything that fsspec opens (s3://, gs://, ...); the saves of job NAME lie
    in url/NAME, and every group must be able to reach them. every_steps, every_minutes: a save is
    due after so many steps, and after so much time, whichever comes first; 0 switches either off.
    The last step is always saved. keep: complete saves that are kept, the newest. timeout_s: how
    long the writing of one save may take. grace_s: how long a group that is asked to leave, and is
    the last one, may take for one more save.
    """

    url: str
    every_steps: int = 0
    every_minutes: float = 0.0
    keep: int = 3
    timeout_s: float = 600.0
    grace_s: float = 20.0

    def __post_init__(self) -> None:
        if not self.url:
            raise UserError("backstop url is empty: give a folder or an fsspec URL, or no backstop at all")
        for name in ("every_steps", "every_minutes", "grace_s"):
            if not 0 <= getattr(self, name) < 1e9:
                raise UserError(f"backstop {name} is {getattr(self, name)}: it must be at least 0")
        if not self.every_steps and not self.every_minutes:
            raise UserError("backstop has no interval: set every_steps or every_minutes")
        if self.keep < 1:
            raise UserError(f"backstop keep is {self.keep}: at least 1 complete save must stay")
        if not 0 < self.timeout_s < 1e6:
            raise UserError(f"backstop timeout_s is {self.timeout_s}: give a number of seconds above 0")


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """What a replica group must know before it can join its job.

    job: name of the job, part of the group's identity. group: number of this replica group.
    lighthouse: HOST:PORT. steps: optimizer updates to commit. micro_batches: M, the fixed number
    that makes one step. seed: of data order and of every micro-batch's randomness. out: folder for
    ledger and events, or None for neither. advertise_addr: the address under which peers reach
    this group, None for the interface that reaches the Lighthouse. metrics_bind: HOST:PORT at which rank 0
    serves metrics for Prometheus, None for nowhere; port 0: any. token_file: holds the secret that
    groups prove to the Lighthouse, and to each other before one gives the other its state, None for none.
    tls_cert, tls_key, tls_ca: this group's certificate, its key, and the CA of the Lighthouse and of all
    groups, for TLS; all three or none. digest_every: steps
    between digests of the state, 0 for never. mode: how gradients are added up. fingerprint: of the
    configuration, compared by the Lighthouse; of words like `lr=0.01` a refusal names those that differ.
    backstop: the saves for the day when every group dies, None for none. configuration: plain JSON
    values that are kept in each save, for whoever reads it.
    """

    job: str
    group: int
    lighthouse: str
    steps: int
    micro_batches: int
    seed: int = 0
    out: Path | None = None
    advertise_addr: str | None = None
    metrics_bind: str | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    digest_every: int = 0
    mode: Mode = Mode.EXACT
    max_nonfinite_steps: int = 5
    fingerprint: str = ""
    backstop: BackstopConfig | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        if not JOB_NAME.fullmatch(self.job):
            raise UserError(
                f"job name {self.job!r} is not usable: use letters, digits, '.', '_' and '-' (at most 64)"
            )
        if self.group < 0:
            raise UserError(f"replica group id {self.group} is negative: number the groups from 0")
        for name in ("steps", "micro_batches", "max_nonfinite_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if len({path is None for path in (self.tls_cert, self.tls_key, self.tls_ca)}) > 1:
            raise UserError("TLS needs all three of --tls-cert, --tls-key and --tls-ca: give them, or none")
        if self.metrics_bind is not None:
            try:
                parse_host_port(self.metrics_bind)
            except ValueError as error:
                raise UserError(f"metrics_bind: {error}") from None
        if self.digest_every < 0:
            raise UserError(f"digest_every is {self.digest_every}: give a number of steps, or 0 for never")
        if not 0 <= self.seed < 1 << 64:
            raise UserError(f"seed is {self.seed}: it must be at least 0 and fit into 64 bits")


def number(name: str, text: str) -> int:
    """Parse the integer that flag or variable `name` holds. Raises UserError."""
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name} is {text!r}: give a whole number") from None


def config_from_environment(**settings: Any) -> GroupConfig:
    """What a replica group must know: fields of GroupConfig, explicit `settings` before the environment.

    For the variables see `settings_from_environment`. Raises UserError for what is missing or cannot be.
    """
    merged = {**settings_from_environment(), **settings}
    merged.setdefault("job", "job")
    if "lighthouse" not in merged:
        raise UserError(
            "no Lighthouse is given: set TORCHFT_LIGHTHOUSE=HOST:PORT, or start one first; "
            "TORCHFT_LIGHTHOUSE=none trains one group alone, without fault tolerance"
        )
    if merged["lighthouse"] == NO_LIGHTHOUSE:
        merged.setdefault("group", 0)
    else:
        try:
            merged["lighthouse"] = parse_address(str(merged["lighthouse"]))
        except ValueError as error:
            raise UserError(str(error)) from None
    if "group" not in merged:
        # No default: another group with its number would take the place of the one that runs.
        raise UserError(
            "the number of this replica group is not given: set REPLICA_GROUP_ID, or start the trainer "
            "with --replica-group-id G; the groups of a job are numbered from 0"
        )
    for name in _PATHS:
        if merged.get(name) is not None:
            merged[name] = Path(merged[name])
    return GroupConfig(**merged)


def settings_from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The GroupConfig fields that environment variables set.

    Reads REPLICA_GROUP_ID, TORCHFT_LIGHTHOUSE and HEADWAY_ followed by JOB, OUT, STEPS, SEED,
    DIGEST_EVERY, BACKSTOP (a URL), BACKSTOP_EVERY_STEPS (50), MODE, ADVERTISE_ADDR, METRICS_BIND,
    TOKEN_FILE, TLS_CERT, TLS_KEY or TLS_CA.
    Raises UserError for a malformed number or an unknown mode.
    """
    found: dict[str, object] = {}
    for variable, name in (
        ("TORCHFT_LIGHTHOUSE", "lighthouse"),
        ("HEADWAY_JOB", "job"),
        ("HEADWAY_ADVERTISE_ADDR", "advertise_addr"),
        ("HEADWAY_METRICS_BIND", "metrics_bind"),
    ):
        if environment.get(variable):
            found[name] = environment[variable]
    if mode := environment.get("HEADWAY_MODE"):
        if mode not in list(Mode):
            raise UserError(f"HEADWAY_MODE is {mode!r}: use {' or '.join(Mode)}")
        found["mode"] = Mode(mode)
    for name in _PATHS:
        variable = f"HEADWAY_{name.upper()}"
        if environment.get(variable):
            found[name] = Path(environment[variable])
    for variable, name in (
        ("REPLICA_GROUP_ID", "group"),
        ("HEADWAY_STEPS", "steps"),
        ("HEADWAY_SEED", "seed"),
        ("HEADWAY_DIGEST_EVERY", "digest_every"),
    ):
        if environment.get(variable):
            found[name] = number(variable, environment[variable])
    if url := environment.get("HEADWAY_BACKSTOP"):
        every = environment.get("HEADWAY_BACKSTOP_EVERY_STEPS") or str(DEFAULT_SAVE_EVERY_STEPS)
        found["backstop"] = BackstopConfig(url=url, every_steps=number("HEADWAY_BACKSTOP_EVERY_STEPS", every))
    return found
