"""Start one replica group: torchrun's agent, with exit codes that mean something.

    python -m replica.launch --nproc-per-node 2 -m train CONFIG.toml --replica-group-id 0 ...

takes torchrun's flags and a script or module. It restarts the group, as a new incarnation with a
rendezvous of its own, at most --max-restarts times, and only where that can help. It returns 0
when the group finished, 3 when it should be started again, 4 when that would fail again.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from replica.errors import ExitCode

LAUNCHER_PID_VARIABLE = "HEADWAY_LAUNCHER_PID"


def group_exit_code(exit_codes: Sequence[int]) -> ExitCode:
    """The exit code of a group whose failed ranks ended with `exit_codes` (negative: by a signal).

    One rank that must not be restarted decides for all; everything else can be tried again, since
    the state is with the other groups.
    """
    if not exit_codes:
        return ExitCode.FINISHED
    if ExitCode.DO_NOT_RESTART in exit_codes:
        return ExitCode.DO_NOT_RESTART
    return ExitCode.RESTART


def describe(failures: Mapping[int, int]) -> str:
    """One sentence about failed ranks: {rank: exit code}."""
    parts = [f"rank {rank} " + _ending(code) for rank, code in sorted(failures.items())]
    return "the group ended: " + ", ".join(parts)


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def run_once(argv: Sequence[str]) -> ExitCode:
    """Run one incarnation under torchrun's agent; blocks until it ends."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    arguments = torchrun.parse_args(list(argv))
    arguments.max_restarts = 0
    try:
        torchrun.run(arguments)
    except ChildFailedError as error:
        failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
        print(describe(failures), file=sys.stderr, flush=True)
        return group_exit_code(list(failures.values()))
    except SignalException as error:
        print(f"the group was ended by {error.sigval.name}", file=sys.stderr, flush=True)
        return ExitCode.RESTART
    return ExitCode.FINISHED


def max_restarts(argv: Sequence[str]) -> int:
    """What torchrun's own parser reads as --max-restarts; torchrun's default is 0."""
    from torch.distributed import run as torchrun

    return int(torchrun.parse_args(list(argv)).max_restarts)


def launch(argv: Sequence[str]) -> ExitCode:
    """Run a group until it finishes, must not be restarted, or its restarts are used up."""
    remaining = max_restarts(argv)
    os.environ[LAUNCHER_PID_VARIABLE] = str(os.getpid())
    # torch warns at length when it has to choose this itself.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    while True:
        code = run_once(argv)
        if code is not ExitCode.RESTART or remaining == 0:
            return code
        remaining -= 1
        print(f"starting the group again, {remaining} restarts are left", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(f"{__doc__}\ntorchrun's flags: see `torchrun --help`.")
        return 0 if words else ExitCode.DO_NOT_RESTART
    return launch(words)


if __name__ == "__main__":
    sys.exit(main())
