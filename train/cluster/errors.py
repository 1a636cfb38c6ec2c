"""The error of a local cluster that could not do what was asked."""

from replica.errors import ExitCode


class ClusterError(Exception):
    """Says why the cluster failed, and ends with the last lines of a log where they help.

    exit_code: what a program that runs the cluster should end with.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def refusal(message: str) -> ClusterError:
    """An error that would come back in the same way."""
    return ClusterError(message, ExitCode.DO_NOT_RESTART)
