"""Start one replica group: torchrun's agent, with exit codes that mean something.

    python -m replica.launch --nproc-per-node 2 -m train CONFIG.toml --replica-group-id 0 ...

takes torchrun's flags and a script or module. It restarts the group, as a new incarnation with a
rendezvous of its own, at most --max-restarts times, and only where that can help. It returns 0
when the group has finished, or has left as SIGTERM asked it to, 3 when it should be started again,
4 when that would fail again.
"""

import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from replica.errors import ExitCode, UserError
from replica.exit import LAUNCHER_PID_VARIABLE
from replica.shadowing import LIBRARY, TRAINER, refuse_shadows
from replica.workers import end_siblings_soon, forward_sigterm


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


def mistakes(failures: Iterable[Any]) -> list[str]:
    """What ranks that failed have handed over for people (torchrun's ProcessFailure); each sentence once."""
    by_user = [each for each in failures if each.exitcode == ExitCode.DO_NOT_RESTART]
    return sorted({str(each.message) for each in by_user if os.path.isfile(each.error_file)})


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def run_once(arguments: Namespace) -> ExitCode:
    """Run one incarnation under torchrun's agent; blocks until it ends.

    `arguments` are torchrun's. Raises UserError for arguments that torchrun cannot use.
    """
    from torch.distributed import DistNetworkError
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        torchrun.run(arguments)
    except ChildFailedError as error:
        failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
        for mistake in mistakes(error.failures.values()):
            print(f"error: {mistake}", file=sys.stderr)
        print(describe(failures), file=sys.stderr, flush=True)
        return group_exit_code(list(failures.values()))
    except ValueError as error:
        raise UserError(f"torchrun refuses its flags: {error}") from error
    except DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise UserError(
            "the rendezvous port is in use: choose another --master-port, or leave it out"
        ) from error
    return ExitCode.FINISHED


def parse(argv: Sequence[str]) -> Namespace:
    """Read torchrun's flags, a script or module, and its arguments. Raises UserError."""
    from torch.distributed import run as torchrun

    parser = torchrun.get_args_parser()

    parser.add_argument(
        "--drain-grace",
        type=float,
        default=30.0,
        help="seconds that the ranks have after SIGTERM to finish their step and leave",
    )

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}: see `torchrun --help`")

    parser.error = refuse  # type: ignore[method-assign]
    arguments = parser.parse_args(list(argv))
    script = arguments.training_script
    if not (arguments.module or arguments.no_python or os.path.exists(script)):
        raise UserError(f"there is no script {script}: give its path, or a module with -m")
    return arguments


def check_imports(arguments: Namespace) -> None:
    """Raises UserError if a file of the user's would take the place of a package that the ranks need."""
    script = arguments.training_script
    if arguments.no_python:
        return
    if arguments.module:
        packages = TRAINER if script.split(".")[0] == "train" else LIBRARY
        refuse_shadows(packages, Path.cwd(), os.environ)
    else:
        refuse_shadows(LIBRARY, Path(script).resolve().parent, os.environ)


def launch(argv: Sequence[str]) -> ExitCode:
    """Run a group until it finishes, must not be restarted, or its restarts are used up.

    SIGTERM lets the ranks finish their step and leave; other signals end the group at once. Both
    are for good. Raises UserError for unusable arguments.
    """
    arguments = parse(argv)
    check_imports(arguments)
    remaining, arguments.max_restarts = arguments.max_restarts, 0
    # The agent would end its workers at once; they are to finish their step and leave.
    arguments.signals_to_handle = "SIGINT,SIGHUP,SIGQUIT"
    asked_to_leave = forward_sigterm(arguments.drain_grace)
    end_siblings_soon()
    os.environ[LAUNCHER_PID_VARIABLE] = str(os.getpid())
    # The agent's log of a failed rank would only repeat our own sentence.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    # torch warns at length when it has to choose this itself.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    while True:
        # torchrun fills in defaults, such as a free port: each incarnation starts without them.
        code = run_once(Namespace(**vars(arguments)))
        if code is not ExitCode.RESTART or remaining <= 0 or asked_to_leave.is_set():
            return code
        remaining -= 1
        print(f"starting the group again, {remaining} restarts are left", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(f"{__doc__}\ntorchrun's flags: see `torchrun --help`.")
        return 0 if words else ExitCode.DO_NOT_RESTART
    from torch.distributed.elastic.multiprocessing import SignalException

    try:
        return launch(words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.DO_NOT_RESTART
    except SignalException as error:
        print(f"the group was ended by {error.sigval.name}", file=sys.stderr)
    except KeyboardInterrupt:
        print("the group was ended by SIGINT", file=sys.stderr)
    return ExitCode.RESTART


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The group is gone; with torch loaded, the interpreter's own shutdown would take half a second.
    os._exit(code)
