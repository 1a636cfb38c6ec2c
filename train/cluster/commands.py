"""The settings of a local cluster, and the command lines and environments of its processes (pure)."""

import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from lighthouse.access import Access, read_access
from replica.errors import UserError
from train.cluster.job_facts import JobFacts
from train.cluster.processes import MARK_VARIABLE

DEFAULT_CONFIG = Path(__file__).parents[1] / "configs" / "default.toml"
HOST = "127.0.0.1"

# What an enclosing trainer or shell may have set and a group must not inherit.
_FOREIGN = re.compile(
    r"(TORCHFT|HEADWAY|TORCHELASTIC|MASTER)_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|REPLICA_GROUP_ID"
)


class LighthouseKind(StrEnum):
    """Which Lighthouse serves the cluster."""

    HEADWAY = "headway"
    TORCHFT = "torchft"  # torchft's own, written in Rust; for comparison


class Launcher(StrEnum):
    """What starts the ranks of a group."""

    HEADWAY = "headway"  # python -m replica.launch
    TORCHRUN = "torchrun"


def lighthouse_kind_of(name: str) -> LighthouseKind:
    """The kind that people call by this name. Raises UserError."""
    try:
        return LighthouseKind(name)
    except ValueError:
        known = " or ".join(LighthouseKind)
        raise UserError(f"there is no Lighthouse of kind {name!r}: use {known}.") from None


def launcher_of(given: str | Sequence[str]) -> Launcher | tuple[str, ...]:
    """The launcher of this name, or the words of a command. Raises UserError."""
    if not isinstance(given, str):
        return tuple(given)
    try:
        return Launcher(given)
    except ValueError:
        known = " or ".join(Launcher)
        raise UserError(f"there is no launcher {given!r}: use {known}, or the words of a command.") from None


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Everything that a local cluster is told. Raises UserError when made with bad values.

    out: folder for ledgers, events, logs and the Lighthouse's state. config None: the built-in one.
    script: trained instead of `python -m train`, with args. overrides: configuration keys and values.
    launcher: a Launcher, or the words of a command that takes torchrun's arguments. max_restarts:
    restarts inside a group, by its launcher. save_every: steps between two saves, 0 for no saves, None
    for as the configuration says. backstop: where saves go, None for saves/ in out, or where the
    configuration says. continues: goes on with the run that is in out. addresses: one per group, under
    which its peers reach it; empty: 127.0.0.1 for all. token_file: with the job's secret, for all
    groups and the Lighthouse. tls: the files "cert", "key" and "ca", for the same. env: added to the
    environment of every group.
    """

    out: Path
    facts: JobFacts
    groups: int = 3
    ranks: int = 2
    config: Path | None = None
    script: Path | None = None
    args: tuple[str, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    lighthouse_kind: LighthouseKind = LighthouseKind.HEADWAY
    launcher: Launcher | tuple[str, ...] = Launcher.HEADWAY
    max_restarts: int = 0
    restart: bool = True
    restart_delay_s: float = 1.0
    save_every: int | None = None
    backstop: str | None = None
    continues: bool = False
    addresses: tuple[str, ...] = ()
    token_file: Path | None = None
    tls: Mapping[str, Path] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    join_timeout_s: float = 60.0
    heartbeat_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        for name, least in (("groups", 1), ("ranks", 1), ("max_restarts", 0)):
            _at_least(name, getattr(self, name), least)
        if self.facts.steps is not None:
            _at_least("steps", self.facts.steps, 1)
        for name in ("join_timeout_s", "heartbeat_timeout_s"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} is {getattr(self, name)}: it must be more than 0.")
        if self.save_every is not None:
            _at_least("save_every", self.save_every, 0)
        if self.backstop is not None and not (self.backstop and self.save_every != 0):
            raise UserError("backstop says where saves go: give a URL, and save_every not 0.")
        if self.restart_delay_s < 0:
            raise UserError(f"restart_delay_s is {self.restart_delay_s}: it must not be negative.")
        if self.addresses and len(self.addresses) != self.groups:
            raise UserError(f"{len(self.addresses)} addresses for {self.groups} groups: give one for each.")
        named = (("configuration", self.config), ("script", self.script), ("token", self.token_file))
        if self.tls is not None and set(self.tls) != {"cert", "key", "ca"}:
            raise UserError(f"tls has the files {sorted(self.tls)}: give cert, key and ca.")
        for what, path in (*named, *(self.tls or {}).items()):
            if path is not None and not path.is_file():
                raise UserError(f"there is no {what} file {path}: give the path of one.")

    @property
    def saves_url(self) -> str | None:
        """Where saves go; empty for no saves, None for whatever the configuration says."""
        if self.backstop is not None:
            return self.backstop
        if not self.save_every:
            return None if self.save_every is None else ""
        return self.facts.backstop or str(self.out / "saves")

    def access(self) -> Access:
        """What the Lighthouse is shown. Raises UserError for files that cannot be used."""
        tls = self.tls or {}
        try:
            return read_access(self.token_file, cert=tls.get("cert"), key=tls.get("key"), ca=tls.get("ca"))
        except ValueError as error:
            raise UserError(str(error)) from None

    def address(self, group: int) -> str:
        """The address under which peers reach the group."""
        return self.addresses[group] if self.addresses else HOST


def lighthouse_command(settings: ClusterSettings, port: int) -> list[str]:
    """The Lighthouse's command line; port 0 lets it choose one."""
    join_ms = str(round(settings.join_timeout_s * 1000))
    heartbeat_ms = str(round(settings.heartbeat_timeout_s * 1000))
    bind = f"{HOST}:{port}"
    if settings.lighthouse_kind is LighthouseKind.TORCHFT:
        program = str(Path(sysconfig.get_path("scripts")) / "torchft_lighthouse")
        limits = ["--join_timeout_ms", join_ms, "--heartbeat_timeout_ms", heartbeat_ms]
        return [program, "--bind", bind, "--min_replicas", "1", *limits]
    limits = ["--join-timeout-ms", join_ms, "--heartbeat-timeout-ms", heartbeat_ms]
    binds = ["--bind", bind, "--http-bind", f"{HOST}:0"]
    state = ["--state-dir", str(settings.out / "lighthouse")]
    groups = ["--expected-groups", str(settings.groups)]
    words = [*binds, *groups, *limits, *state, *_access_flags(settings)]
    return [sys.executable, "-m", "lighthouse", "serve", *words]


def _access_flags(settings: ClusterSettings) -> list[str]:
    flags = [] if settings.token_file is None else ["--token-file", str(settings.token_file)]
    if settings.tls is not None:
        flags += ["--tls-bind", f"{HOST}:0"]
        for what, path in settings.tls.items():
            flags += [f"--tls-{what}", str(path)]
    return flags


def group_command(settings: ClusterSettings, group: int, lighthouse: str) -> list[str]:
    """The command line of a group's launcher; lighthouse: HOST:PORT."""
    ranks = ["--nproc-per-node", str(settings.ranks), "--max-restarts", str(settings.max_restarts)]
    return [*_launcher(settings.launcher), *ranks, *_program(settings, group, lighthouse)]


def environment(
    settings: ClusterSettings, group: int, lighthouse: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a group: inherited, less what another trainer set, plus what it needs."""
    facts = settings.facts
    own = {
        "REPLICA_GROUP_ID": str(group),
        "TORCHFT_LIGHTHOUSE": lighthouse,
        "HEADWAY_OUT": str(settings.out),
        "HEADWAY_JOB": facts.job,
        "HEADWAY_SEED": str(facts.seed),
        "HEADWAY_MODE": facts.mode,
        "HEADWAY_ADVERTISE_ADDR": settings.address(group),
        "HEADWAY_METRICS_BIND": f"{settings.address(group)}:0",
        "HEADWAY_DIGEST_EVERY": "1",
    }
    if facts.steps is not None:
        own["HEADWAY_STEPS"] = str(facts.steps)
    if settings.saves_url:
        own["HEADWAY_BACKSTOP"] = settings.saves_url
    if settings.save_every:
        own["HEADWAY_BACKSTOP_EVERY_STEPS"] = str(settings.save_every)
    if settings.token_file is not None:
        own["HEADWAY_TOKEN_FILE"] = str(settings.token_file)
    for what, path in (settings.tls or {}).items():
        own[f"HEADWAY_TLS_{what.upper()}"] = str(path)
    return {**base_environment(inherited), **own, **settings.env}


def base_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What every process of the cluster gets.

    One thread per rank: several ranks share this machine's cores.
    """
    kept = {name: value for name, value in inherited.items() if not _FOREIGN.fullmatch(name)}
    kept.pop(MARK_VARIABLE, None)
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _launcher(launcher: Launcher | tuple[str, ...]) -> list[str]:
    if launcher is Launcher.HEADWAY:
        return [sys.executable, "-m", "replica.launch"]
    if launcher is Launcher.TORCHRUN:
        # --standalone lets torchrun's own store choose a free port.
        return [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return list(launcher)


def _program(settings: ClusterSettings, group: int, lighthouse: str) -> list[str]:
    if settings.script is not None:
        return [str(settings.script), *settings.args]
    facts = settings.facts
    words = ["-m", "train", str(settings.config or DEFAULT_CONFIG)]
    words += ["--replica-group-id", str(group), "--lighthouse-addr", lighthouse]
    words += ["--job", facts.job, "--out", str(settings.out), "--mode", facts.mode]
    words += ["--advertise-addr", settings.address(group)]
    if facts.steps is not None:
        words += ["--steps", str(facts.steps)]
    if settings.saves_url is not None:
        words += ["--backstop", settings.saves_url]
    own = {"job.seed": str(facts.seed)}
    if settings.save_every:
        own["backstop.every_steps"] = str(settings.save_every)
    for key, value in {**settings.overrides, **own}.items():
        words += [f"--{key}", value]
    return [*words, *settings.args]


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{name} is {value}: it must be at least {least}.")
