"""What a local cluster looks like at one moment: the input of its view and of its kill schedule."""

from dataclasses import dataclass
from enum import StrEnum


class GroupState(StrEnum):
    """What a replica group is doing, as far as its supervisor can see from outside."""

    STARTING = "starting"  # first incarnation, nothing committed yet
    TRAINING = "training"  # this incarnation has committed a step
    PAUSED = "paused"  # stopped with SIGSTOP
    DEAD = "dead"  # no launcher runs
    RESTARTING = "restarting"  # a later incarnation whose trainer is not up yet
    HEALING = "healing"  # a later incarnation whose trainer is up and has not committed yet
    FINISHED = "finished"  # ended with exit code 0


@dataclass(frozen=True, kw_only=True)
class GroupSnapshot:
    """One group. step: steps committed so far; last_seen_s: age of the last sign of life."""

    group: int
    state: GroupState
    step: int
    last_seen_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The whole cluster. step: highest number of steps committed by any group; steps: of how many."""

    step: int
    steps: int | None
    loss: float | None
    step_s: float | None
    kills: int
    lighthouse_up: bool
    groups: tuple[GroupSnapshot, ...]

    def up_to_date(self) -> frozenset[int]:
        """Groups that train and are at most one step behind the first."""
        return frozenset(
            group.group
            for group in self.groups
            if group.state is GroupState.TRAINING and group.step >= self.step - 1
        )
