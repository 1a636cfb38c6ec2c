"""What to do when a replica group has ended: a pure decision."""

from dataclasses import dataclass
from enum import StrEnum

from replica.errors import ExitCode

MAX_FAILURES = 5
# Before the first commit of the job there is nothing to lose: a script that cannot start is told soon.
MAX_FAILURES_AT_FIRST = 3
_MAX_DELAY_S = 10.0


class Verdict(StrEnum):
    """What becomes of a group that has ended."""

    FINISHED = "finished"
    RESTART = "restart"
    LEAVE = "leave"  # it stays down, and the others go on
    REFUSED = "refused"  # it said that a restart would fail again: the cluster ends
    FAILING = "failing"  # it failed too often in a row: the cluster ends


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one incarnation of a group ended.

    exit_code: negative for a signal. killed: by order of the cluster's user. committed: whether this
    incarnation had committed a step. failures: incarnations right before it that ended by themselves
    and had committed nothing. job_over: another group has finished and a newcomer would not be told.
    job_begun: any group has ever committed a step.
    """

    exit_code: int
    killed: bool
    committed: bool
    failures: int
    restart: bool
    job_over: bool
    job_begun: bool = True


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, how many failures there now are in a row, and how much longer than usual to wait."""

    verdict: Verdict
    failures: int
    backoff_s: float = 0.0


def after_ending(ending: Ending) -> Decision:
    """Decides about a group that has ended.

    A kill that was ordered says nothing about the group, and a commit proves that it works; only
    incarnations that end by themselves without one count as failures.
    """
    if ending.exit_code == ExitCode.FINISHED:
        return Decision(verdict=Verdict.FINISHED, failures=0)
    if ending.exit_code == ExitCode.DO_NOT_RESTART:
        return Decision(verdict=Verdict.REFUSED, failures=ending.failures)
    failures = _failures(ending)
    if failures >= (MAX_FAILURES if ending.job_begun else MAX_FAILURES_AT_FIRST):
        return Decision(verdict=Verdict.FAILING, failures=failures)
    if ending.job_over or not ending.restart:
        return Decision(verdict=Verdict.LEAVE, failures=failures)
    backoff_s = min(_MAX_DELAY_S, 2.0**failures - 1)
    return Decision(verdict=Verdict.RESTART, failures=failures, backoff_s=backoff_s)


def _failures(ending: Ending) -> int:
    if ending.committed:
        return 0
    return ending.failures if ending.killed else ending.failures + 1
