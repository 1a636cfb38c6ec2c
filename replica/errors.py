"""Errors that a trainer ends with, and the exit code each of them means."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of a trainer and of its launcher.

    RESTART means that the state is safe with the peers and a new incarnation should be started;
    DO_NOT_RESTART that a restart would fail in the same way.
    """

    FINISHED = 0
    RESTART = 3
    DO_NOT_RESTART = 4


class UserError(Exception):
    """Something that the user can mend. Its text is one sentence: what, where, what to do."""

    exit_code = ExitCode.DO_NOT_RESTART


class RestartError(Exception):
    """This incarnation cannot go on, and a new one can. Its text is one sentence."""

    exit_code = ExitCode.RESTART
