"""A whole job on this machine, with kills if you like: `python -m train.local`.

Starts a Lighthouse and replica groups on free ports of 127.0.0.1, shows their progress, kills and
starts again as told, ends by itself and prints a report. `LocalCluster` is the same as a library.

Exit codes: 0 the job finished and the report shows no broken promise; 1 it does, or the cluster
failed; 4 bad input; 130 or 143 ended by Ctrl-C or SIGTERM.
"""

import argparse
import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from replica.errors import ExitCode, UserError
from replica.ledger import KillTarget
from train.chaos import Chaos, Kill, parse_kill_at, parse_kill_targets
from train.cluster.commands import LighthouseKind
from train.cluster.errors import ClusterError
from train.cluster.local_cluster import LocalCluster
from train.cluster.view import View, open_view
from train.config_reading import parse_overrides
from train.report import format_report

__all__ = ["ClusterError", "LocalCluster", "main"]

_FAILED = 1
_LOOK_S = 0.1
_STALL_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cluster that the arguments ask for; returns the exit code. Blocks until it ends."""
    try:
        arguments, rest = _parser().parse_known_args(argv)
        cluster, chaos = _prepare(arguments, parse_overrides(rest))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.DO_NOT_RESTART
    with _signals(cluster) as caught:
        return _run(cluster, chaos, caught)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m train.local",
        description=__doc__.split("\n\n")[1],
        epilog="Any key of the configuration can be set as --section.key VALUE, such as --model.dim 64.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--groups", type=int, default=3, metavar="N", help="replica groups (default 3)")
    add("--ranks", type=int, default=2, metavar="N", help="processes in each group (default 2)")
    add("--steps", type=int, metavar="N", help="optimizer updates (default: the configuration's, 200)")
    add(
        "--kill-every",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="kill a group about so often, each in turn; 0: never (default)",
    )
    add(
        "--kill-targets",
        metavar="LIST",
        help="what --kill-every kills, each in turn: group (default), rank, launcher, lighthouse",
    )
    add(
        "--kill-at",
        action="append",
        default=[],
        metavar="STEP:GROUP",
        help="kill this group when the job has committed so many steps; may be repeated",
    )
    add("--kill-rank", type=int, metavar="RANK", help="kill only this rank of the group, not all of it")
    add("--seed", type=int, metavar="N", help="of weights, data order and kills (default 0)")
    add("--config", type=Path, metavar="FILE", help="TOML configuration (default: the built-in one)")
    add("--out", type=Path, metavar="DIR", help="folder of the run (default: out/NAME-DATE-TIME)")
    add(
        "--save-every",
        type=int,
        metavar="N",
        help="steps between two saves; 0: none (default: the configuration's)",
    )
    add("--backstop", metavar="URL", help="where saves go (default: saves/ in the folder of the run)")
    add(
        "--continue",
        action="store_true",
        dest="continues",
        help="go on with the run in --out, all of whose processes are gone, from its newest save",
    )
    add("--token-file", type=Path, metavar="FILE", help="the job's secret, for all groups and the Lighthouse")
    add("--mode", metavar="exact|fast", help="how gradients are summed (default: the configuration's)")
    add(
        "--lighthouse-kind",
        choices=[kind.value for kind in LighthouseKind],
        default="headway",
        help="torchft: its own Lighthouse, for comparison (default headway)",
    )
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help.")


def _prepare(arguments: argparse.Namespace, overrides: dict[str, str]) -> tuple[LocalCluster, Chaos]:
    """The cluster and its kills. Raises UserError for whatever the arguments get wrong."""
    if not arguments.continues:
        _check_folder(arguments.out)
    elif arguments.out is None:
        raise UserError("--continue goes on with a run: name its folder with --out.")
    cluster = LocalCluster(
        out=arguments.out,
        groups=arguments.groups,
        ranks=arguments.ranks,
        steps=arguments.steps,
        seed=arguments.seed,
        config=arguments.config,
        mode=arguments.mode,
        token_file=arguments.token_file,
        overrides=overrides,
        lighthouse_kind=arguments.lighthouse_kind,
        save_every=arguments.save_every,
        backstop=arguments.backstop,
        continues=arguments.continues,
    )
    return cluster, _chaos(arguments, cluster)


def _check_folder(out: Path | None) -> None:
    if out is None or not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"--out {out} is not a folder: name a new one.")
    try:
        empty = not any(out.iterdir())
    except OSError as error:
        raise UserError(f"--out {out} cannot be read ({error.strerror}): name a new one.") from None
    if not empty:
        raise UserError(f"--out {out} is not empty: name a new one, so that no two runs get mixed.")


def _chaos(arguments: argparse.Namespace, cluster: LocalCluster) -> Chaos:
    groups, ranks, facts = arguments.groups, arguments.ranks, cluster.settings.facts
    every_s, rank = arguments.kill_every, arguments.kill_rank
    if not (math.isfinite(every_s) and every_s >= 0):
        raise UserError(f"--kill-every {every_s:g}: give a number of seconds, or 0 for never.")
    if rank is not None and not 0 <= rank < ranks:
        raise UserError(f"--kill-rank {rank}: ranks of a group are 0 to {ranks - 1}.")
    at = tuple(parse_kill_at(text, groups=groups, steps=facts.steps or 0) for text in arguments.kill_at)
    targets = _targets(arguments)
    if (at or (every_s and set(targets) != {KillTarget.LIGHTHOUSE})) and groups < 2:
        raise UserError("kills need --groups 2 or more: the state of a lost group lives in the others.")
    return Chaos(
        seed=facts.seed, groups=groups, ranks=ranks, every_s=every_s, targets=targets, rank=rank, at=at
    )


def _targets(arguments: argparse.Namespace) -> tuple[KillTarget, ...]:
    text = arguments.kill_targets
    if text is None:
        return (KillTarget.GROUP,)
    targets = parse_kill_targets(text)
    if arguments.kill_rank is not None:
        raise UserError("--kill-rank and --kill-targets exclude each other: leave one of them out.")
    if not arguments.kill_every:
        raise UserError("--kill-targets says what --kill-every kills: give --kill-every SECONDS as well.")
    return targets


@dataclass
class _Caught:
    """The signal that asked us to end, None so far."""

    number: int | None = None


@contextmanager
def _signals(cluster: LocalCluster) -> Iterator[_Caught]:
    """Ctrl-C, SIGTERM and a closed terminal end the cluster in good order instead of this process."""
    caught = _Caught()

    def note(number: int, frame: FrameType | None) -> None:
        caught.number = number
        cluster.interrupt()

    before = {
        number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(cluster: LocalCluster, chaos: Chaos, caught: _Caught) -> int:
    try:
        with cluster:
            print(f"run folder {cluster.out}, status on {cluster.status_url}", flush=True)
            with open_view(sys.stdout) as view:
                _watch(cluster, chaos, view)
            report = cluster.wait()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.DO_NOT_RESTART
    except ClusterError as error:
        if caught.number is not None:
            print(
                f"ended by {signal.Signals(caught.number).name}; files are in {cluster.out}", file=sys.stderr
            )
            return 128 + caught.number
        print(f"error: {error}\nFiles are in {cluster.out}", file=sys.stderr)
        return error.exit_code
    print(format_report(report), flush=True)
    return _FAILED if report["violations"] else ExitCode.FINISHED


def _watch(cluster: LocalCluster, chaos: Chaos, view: View) -> None:
    """Shows progress and kills what is due, until the job is finished. Raises ClusterError."""
    step, stalled_s = 0, time.monotonic() + _STALL_S
    while not cluster.finished:
        cluster.check()
        now_s, seen = time.monotonic(), cluster.snapshot()
        view.update(seen, now_s)
        kill = chaos.due(now_s, seen)
        if kill is not None:
            # It may have ended by itself in this very moment; its next turn will come.
            with suppress(ClusterError):
                carry_out(kill, cluster)
        if seen.step > step:
            step, stalled_s = seen.step, now_s + _STALL_S
        elif now_s > stalled_s:
            raise ClusterError(f"no group has committed a step for {_STALL_S:g} s.\n{cluster.log_tails()}")
        time.sleep(_LOOK_S)
    view.update(cluster.snapshot(), math.inf)


def carry_out(kill: Kill, cluster: LocalCluster) -> None:
    """Kills what is to be killed. Raises ClusterError if it does not run just now."""
    if kill.group is None:
        cluster.kill_lighthouse(down_s=kill.down_s)
    elif kill.target is KillTarget.LAUNCHER:
        cluster.kill_launcher(kill.group)
    else:
        cluster.kill(kill.group, rank=kill.rank)


if __name__ == "__main__":
    sys.exit(main())
