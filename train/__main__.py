"""The trainer's command line: `torchrun --nproc-per-node R -m train CONFIG.toml ...`."""

import argparse
import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from replica.errors import UserError
from replica.exit import run
from train.config import JobConfig, as_document
from train.config_reading import load_config, split_overrides
from train.config_rules import validate

LOG = logging.getLogger("headway")
USAGE = "torchrun --nproc-per-node R -m train CONFIG.toml --replica-group-id G --lighthouse-addr HOST:PORT"
EPILOG = """Any key of the configuration can be set as --section.key VALUE, for example --model.dim 256.
TORCHFT_LIGHTHOUSE and REPLICA_GROUP_ID serve where the flags are absent, and so do HEADWAY_JOB, _OUT,
_ADVERTISE_ADDR, _METRICS_BIND, _BACKSTOP, _TOKEN_FILE, _TLS_CERT, _TLS_KEY and _TLS_CA.
Exit codes: 0 finished; 3 start me again, the state is safe with the peers; 4 do not start me again."""


class _Parser(argparse.ArgumentParser):
    """argparse, with our way to tell a mistake."""

    def error(self, message: str) -> Any:
        raise UserError(f"{message}: see `python -m train --help`")


def parser() -> argparse.ArgumentParser:
    """The flags of the trainer; settings of the configuration are left over."""
    flags = _Parser(
        prog="train",
        usage=USAGE,
        description="Train a Llama-style decoder as one replica group of a fault-tolerant job.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument("config", nargs="?", type=Path, help="TOML file (none: all defaults)")
    flags.add_argument(
        "--replica-group-id",
        type=int,
        metavar="G",
        help="number of this group, from 0 (no default, except 0 without a Lighthouse)",
    )
    flags.add_argument(
        "--lighthouse-addr",
        metavar="HOST:PORT",
        help="where the Lighthouse listens; none: one group alone, without fault tolerance (no default)",
    )
    flags.add_argument("--job", help="name of the job (default: the configuration's)")
    flags.add_argument(
        "--steps", type=int, metavar="N", help="optimizer steps to commit (default: the configuration's)"
    )
    flags.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for ledger and events, which `headway report` reads (default: none, nothing is written)",
    )
    flags.add_argument(
        "--mode", choices=("exact", "fast"), help="how gradients are summed (default: the configuration's)"
    )
    flags.add_argument(
        "--advertise-addr",
        metavar="A",
        help="address under which peers reach this group (default: of the interface to the Lighthouse)",
    )
    flags.add_argument(
        "--metrics-bind",
        metavar="HOST:PORT",
        help="where rank 0 serves metrics for Prometheus; port 0: any (default: nowhere)",
    )
    flags.add_argument(
        "--backstop",
        metavar="URL",
        help="folder or fsspec URL for saves, read only when no group is left alive (default: no saves)",
    )
    flags.add_argument(
        "--token-file",
        type=Path,
        metavar="F",
        help="file with the job's secret, for the Lighthouse and for heals between groups (default: none)",
    )
    for name, text in (
        ("--tls-cert", "certificate of this group, for TLS"),
        ("--tls-key", "its key"),
        ("--tls-ca", "CA of the Lighthouse and of all groups"),
    ):
        flags.add_argument(name, type=Path, metavar="F", help=f"{text} (default: no TLS)")
    flags.add_argument(
        "--lighthouse-wait",
        type=float,
        metavar="S",
        help="seconds to wait for an unreachable Lighthouse (default: the configuration's, 600)",
    )
    return flags


def read_config(flags: argparse.Namespace, given: Mapping[str, str]) -> JobConfig:
    """The configuration, with the flags that stand for keys of it laid over it."""
    overrides = dict(given)
    named = {"job.steps": flags.steps, "job.name": flags.job, "run.mode": flags.mode}
    named |= {"backstop.url": flags.backstop, "timeouts.lighthouse_wait_s": flags.lighthouse_wait}
    for key, value in named.items():
        if value is not None:
            overrides[key] = str(value)
    return load_config(flags.config, overrides)


def settings(flags: argparse.Namespace, config: JobConfig) -> dict[str, Any]:
    """What the group must know, as far as flags and configuration say it; the rest is in the environment."""
    given = {
        "job": flags.job or os.environ.get("HEADWAY_JOB") or config.job.name,
        "group": flags.replica_group_id,
        "lighthouse": flags.lighthouse_addr,
        "out": flags.out,
        "advertise_addr": flags.advertise_addr,
        "metrics_bind": flags.metrics_bind,
        "token_file": flags.token_file,
        "tls_cert": flags.tls_cert,
        "tls_key": flags.tls_key,
        "tls_ca": flags.tls_ca,
        "timeouts": config.timeouts,
        "steps": config.job.steps,
        "micro_batches": config.job.micro_batches,
        "seed": config.job.seed,
        "digest_every": config.run.digest_every,
        "mode": config.run.mode,
        "max_nonfinite_steps": config.run.max_nonfinite_steps,
        "backstop": config.backstop.settings,
        "configuration": as_document(config),
    }
    return {name: value for name, value in given.items() if value is not None}


def work(argv: Sequence[str]) -> None:
    """Read the command line, join the job, train."""
    rest, overrides = split_overrides(argv)
    flags = parser().parse_args(rest)
    config = read_config(flags, overrides)
    validate(config, group_world_size=int(os.environ.get("WORLD_SIZE", "1")))
    # torch is loaded only now, so that a mistake in the configuration is told at once; and without
    # the garbage collector, which would look at its million objects again and again.
    gc.disable()
    from replica.group import ReplicaGroup
    from train.config import fingerprint
    from train.data import open_dataset
    from train.device import choose_device
    from train.loop import train

    gc.freeze()
    gc.enable()
    dataset = open_dataset(config)
    device = choose_device(config.run.device)
    arguments = settings(flags, config)
    arguments["fingerprint"] = fingerprint(config, dataset.fingerprint)
    with ReplicaGroup.from_env(device=device, threads=config.run.threads_per_rank, **arguments) as group:
        if group.config.out is None:
            LOG.info("no --out: neither ledger nor events are written, so there will be no report")
        train(config, group, dataset)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the trainer and end the process with its exit code."""
    rank = os.environ.get("RANK", "0")
    logging.basicConfig(
        level=logging.INFO if rank == "0" else logging.WARNING,
        stream=sys.stderr,
        format=f"%(asctime)s rank {rank} %(levelname)s %(message)s",
    )
    # torchft logs a traceback for each death of a peer; here that is an expected event of its own.
    for name in ("torchft", "torchft_quorums", "torchft_commits", "torchft_errors"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    run(lambda: work(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    main()
