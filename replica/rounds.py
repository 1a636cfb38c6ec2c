"""Which replica group runs which round of a step: pure arithmetic, the same on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from replica.errors import UserError


def rounds_per_step(micro_batches: int, group_world_size: int) -> int:
    """T = M / R, the rounds that make one step. Raises UserError when R does not divide M."""
    if micro_batches % group_world_size:
        fitting = [r for r in range(1, micro_batches + 1) if micro_batches % r == 0]
        raise UserError(
            f"micro_batches = {micro_batches} cannot be shared by {group_world_size} ranks per group: "
            f"use one of {', '.join(map(str, fitting))} ranks, or another number of micro-batches"
        )
    return micro_batches // group_world_size


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who runs which round of one attempt.

    owners[i] is the number of the group that runs round i; group numbers are the keys that peers
    know each other by. Equal plans have equal `fingerprint`s on every rank of every group.
    """

    step: int
    quorum_id: int
    owners: tuple[int, ...]

    def rounds_of(self, group: int) -> tuple[int, ...]:
        """Rounds dealt to `group`, in rising order; empty for a joiner or a spare."""
        return tuple(index for index, owner in enumerate(self.owners) if owner == group)

    @property
    def fingerprint(self) -> int:
        """A 63-bit hash of the whole plan, for ranks to compare."""
        text = f"{self.step}:{self.quorum_id}:{','.join(map(str, self.owners))}"
        return xxhash.xxh64_intdigest(text.encode()) >> 1


def deal(*, step: int, quorum_id: int, rounds: int, up_to_date: Sequence[int]) -> Plan:
    """Deal the rounds of a step in turn to the groups that hold the state of that step.

    `up_to_date` are group numbers in any order, at least one. Groups beyond `rounds` get none:
    they are hot spares. No group gets more than one round more than another.
    """
    if not up_to_date:
        raise ValueError("no group is up to date: nobody could run a round")
    groups = sorted(set(up_to_date))
    owners = tuple(groups[index % len(groups)] for index in range(rounds))
    return Plan(step=step, quorum_id=quorum_id, owners=owners)


def micro_batch_of(round_index: int, group_rank: int, group_world_size: int) -> int:
    """Number of the micro-batch that rank `group_rank` runs in round `round_index`."""
    return round_index * group_world_size + group_rank
