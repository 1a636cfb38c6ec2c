"""The `headway` command: hands each subcommand to the module of which it is the short name."""

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BAD_INPUT = 4


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """A subcommand: the module whose ``main(argv) -> exit code`` it runs, and what that does."""

    module: str
    spelled_out: str
    summary: str


SUBCOMMANDS = {
    "run": Subcommand(
        module="train.__main__",
        spelled_out="python -m train",
        summary="train as one rank of a replica group; torchrun or `headway launch` starts the ranks",
    ),
    "local": Subcommand(
        module="train.local",
        spelled_out="python -m train.local",
        summary="run a whole cluster on this machine, with kills if you like, and report",
    ),
    "launch": Subcommand(
        module="replica.launch",
        spelled_out="python -m replica.launch",
        summary="start one replica group: torchrun's flags, then a script or -m MODULE",
    ),
    "report": Subcommand(
        module="train.report",
        spelled_out="python -m train.report",
        summary="judge and summarise the output folder of a run",
    ),
    "checkpoint": Subcommand(
        module="train.checkpoint",
        spelled_out="python -m train.checkpoint",
        summary="list, verify, prune and export the saves of a job",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code; 4 also means that there is no such subcommand.

    ``argv`` defaults to the words after the program's name.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        print(help_text(), file=sys.stderr)
        return BAD_INPUT
    name, rest = words[0], words[1:]
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name not in SUBCOMMANDS:
        print(_unknown(name), file=sys.stderr)
        return BAD_INPUT
    # Imported only now: torch takes seconds, and help should not wait for it.
    entry: Callable[[list[str]], int] = importlib.import_module(SUBCOMMANDS[name].module).main
    return entry(rest)


def help_text() -> str:
    """Return the help: a line for each subcommand."""
    width = max(map(len, SUBCOMMANDS))
    spelled_width = max(len(command.spelled_out) for command in SUBCOMMANDS.values())
    lines = [
        f"  {name:{width}}  {command.spelled_out:{spelled_width}}  {command.summary}"
        for name, command in SUBCOMMANDS.items()
    ]
    return "\n".join(
        [
            "usage: headway SUBCOMMAND [ARGUMENT ...]",
            "",
            *lines,
            "",
            "`headway SUBCOMMAND --help` tells the arguments of each.",
        ]
    )


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, SUBCOMMANDS, n=1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return f"error: unknown subcommand {name!r}{guess}; see headway --help"
