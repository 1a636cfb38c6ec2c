"""The command line: `python -m lighthouse serve`, and the commands for people: see `--help`."""

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from lighthouse.access import Access, read_access
from lighthouse.address import parse_address
from lighthouse.app import BindError, serve
from lighthouse.client import LighthouseError, check_may_drain, drain, evict, forget, status
from lighthouse.config import (
    ConfigError,
    LighthouseConfig,
    OneLineParser,
    add_access_arguments,
    add_serve_arguments,
    config_from,
)
from lighthouse.hardware_watch import add_watch_arguments, watch
from lighthouse.monitoring_files import write_monitoring
from lighthouse.status import Document
from lighthouse.status_words import COLUMNS, cells, job_name, lines
from lighthouse.store import StoreError

EXIT_OK = 0
EXIT_TROUBLE = 1
EXIT_BAD_INPUT = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 (no answer), 4 (bad input)."""
    _configure_logging()
    try:
        chosen = _parser().parse_args(arguments)
        if chosen.command == "serve":
            return asyncio.run(_serve(config_from(chosen)))
        if chosen.command == "monitoring":
            return _monitoring(chosen.folder)
        return _COMMANDS[chosen.command](parse_address(chosen.address), chosen)
    except (ConfigError, StoreError, BindError, ValueError) as error:
        print(f"lighthouse: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except LighthouseError as error:
        print(f"lighthouse: {error}", file=sys.stderr)
        return EXIT_TROUBLE


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="lighthouse", description="Knows which groups live, decides the quorum.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_serve_arguments(commands.add_parser("serve", allow_abbrev=False, help="run a Lighthouse"))
    show = commands.add_parser("status", allow_abbrev=False, help="show what a Lighthouse knows")
    show.add_argument("address", help="HOST:PORT of its gRPC server")
    add_access_arguments(show)
    show.add_argument("--json", action="store_true", help="the whole document instead of a summary")
    for name, text in _ABOUT_A_GROUP:
        _add_job_arguments(commands.add_parser(name, allow_abbrev=False, help=text), with_group=True)
    drop = commands.add_parser("forget", allow_abbrev=False, help="start a job over: drop its record")
    _add_job_arguments(drop, with_group=False)
    guard = commands.add_parser("watch-hardware", allow_abbrev=False, help=_ABOUT_HARDWARE)
    _add_job_arguments(guard, with_group=True)
    add_watch_arguments(guard)
    hand_out = commands.add_parser(
        "monitoring", allow_abbrev=False, help=_ABOUT_MONITORING, description=_ABOUT_MONITORING
    )
    hand_out.add_argument("folder", type=Path, metavar="DIR", help="made if need be; nothing is overwritten")
    return parser


_ABOUT_HARDWARE = "on a training host: drain its group when a GPU is about to fail"
_ABOUT_MONITORING = "write alert rules, a dashboard and an example for Prometheus and Grafana into a folder"
_ABOUT_A_GROUP = (
    ("drain", "ask a group to leave at the end of its step"),
    ("evict", "count a group out now, its processes end themselves"),
)


def _add_job_arguments(parser: argparse.ArgumentParser, *, with_group: bool) -> None:
    parser.add_argument("address", help="HOST:PORT of its gRPC server")
    parser.add_argument("job", help="the job's name")
    if with_group:
        parser.add_argument("group", type=int, help="the group's number")
    add_access_arguments(parser)


def _configure_logging() -> None:
    """Events as key=value on standard error. Done here and nowhere else."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


async def _serve(config: LighthouseConfig) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve(config) as lighthouse:
        where = f"status on {lighthouse.status_url}" if lighthouse.status_url else "status off"
        print(f"lighthouse listening on {lighthouse.url}, {where}", flush=True)
        if lighthouse.tls_url is not None:
            print(f"its own service over TLS on {lighthouse.tls_url}", flush=True)
        await stop.wait()
    return EXIT_OK


def _access(chosen: argparse.Namespace) -> Access:
    return read_access(chosen.token_file, cert=chosen.tls_cert, key=chosen.tls_key, ca=chosen.tls_ca)


def _status(address: str, chosen: argparse.Namespace) -> int:
    document = status(address, access=_access(chosen))
    print(json.dumps(document, indent=2) if chosen.json else "\n".join(summary(document)))
    return EXIT_OK


def summary(document: Document) -> list[str]:
    """The status document as lines for people: of each job some sentences and a table of its groups."""
    shown = [] if document["store"] == "ok" else [str(document["store"])]
    for job in document["jobs"]:
        shown += [job_name(job), *(f"  {line}" for line in lines(job))]
        shown += [f"  {row}" for row in table([COLUMNS, *map(cells, job["groups"])]) if job["groups"]]
    return shown or ["no job has been seen yet"]


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _drain(address: str, chosen: argparse.Namespace) -> int:
    known = drain(address, chosen.job, chosen.group, access=_access(chosen))
    return _tell(chosen, known, "will leave at the end of its step")


def _watch_hardware(address: str, chosen: argparse.Namespace) -> int:
    access = _access(chosen)
    told = watch(
        chosen,
        lambda: drain(address, chosen.job, chosen.group, access=access),
        lambda: check_may_drain(address, chosen.job, access=access),
    )
    return _tell(chosen, told, "will leave at the end of its step")


def _evict(address: str, chosen: argparse.Namespace) -> int:
    known = evict(address, chosen.job, chosen.group, access=_access(chosen))
    return _tell(chosen, known, "is counted out")


def _monitoring(folder: Path) -> int:
    for path in write_monitoring(folder):
        print(path)
    return EXIT_OK


def _tell(chosen: argparse.Namespace, known: bool, done: str) -> int:
    name = f"group {chosen.group} of {chosen.job}"
    print(f"{name} {done}" if known else f"{name} does not live: nothing was done")
    return EXIT_OK if known else EXIT_TROUBLE


def _forget(address: str, chosen: argparse.Namespace) -> int:
    known = forget(address, chosen.job, access=_access(chosen))
    print(f"{chosen.job} is forgotten" if known else f"{chosen.job} was not known")
    return EXIT_OK


_COMMANDS = {
    "status": _status,
    "drain": _drain,
    "evict": _evict,
    "forget": _forget,
    "watch-hardware": _watch_hardware,
}


if __name__ == "__main__":
    sys.exit(main())
