"""How a group leaves its job: the save of what only it has, its goodbye, and what went wrong with both."""

import logging
from typing import TYPE_CHECKING

from replica.errors import UserError
from replica.goodput import Doing
from replica.ledger import EventKind
from replica.remaining import Remaining, remaining
from replica.saves import LastSave, Saves

if TYPE_CHECKING:
    from replica.group import ReplicaGroup

LOG = logging.getLogger("headway")
GOODBYE_S = 60.0


def leave(group: "ReplicaGroup") -> None:
    """Say goodbye: the last step is done, this group is drained, or the job ended without it.

    The last group of a job that goes ends when the state it leaves behind is durable. A collective of the
    group, on the training thread. Raises UserError where the state could not be made durable.
    """
    done = group.step >= group.config.steps
    if not done:
        why = "asked to leave" if group.notices.draining else "the job is finished"
        LOG.info("group %s leaves at step %s: %s", group.config.group, group.step, why)
    last = not done and _save_if_alone(group)
    # Without its last save the job is not finished: who starts it again goes on from an older one.
    finished = done and (group.saves is None or group.saves.last is LastSave.DURABLE)
    # No rank may end, and break its stream, before rank 0 has said goodbye for all.
    group.ranks.first_then_all(
        lambda: group.stream.goodbye(finished=finished, step=group.step), timeout_s=GOODBYE_S
    )
    if not done and not last and group.step > 0:
        last = _part(group)
    waited_s = round(group.stopwatch.seconds().save, 3)
    group.record.group_event(EventKind.FINISHED, step=group.step, save_s=waited_s)
    if group.saves is not None and group.saves.failure is not None and (done or last):
        raise UserError(group.saves.failure)


def _save_if_alone(group: "ReplicaGroup") -> bool:
    """Where nobody else computed the newest step, nobody waits: the Lighthouse still hears of the save."""
    if group.saves is None or not group.saves.is_alone:
        return False
    _save(group, group.saves)
    return True


def _part(group: "ReplicaGroup") -> bool:
    """After the goodbye: leave the state to the others, or save it if there are none; whether there are none.

    As long as nobody knows, it counts as the last one.
    """
    left = Remaining(group.ranks.share([_ask(group) if group.rank == 0 else 0])[0][0])
    if group.saves is None:
        if left is Remaining.NOBODY and group.rank == 0:
            group.warn(
                f"no other group lives, and no backstop is configured: the state of step {group.step} is "
                f"lost with this one"
            )
    elif left is not Remaining.OTHERS:
        _save(group, group.saves)
    else:
        with group.stopwatch.time(Doing.SAVE):
            group.saves.settle()
    return left is not Remaining.OTHERS


def _ask(group: "ReplicaGroup") -> Remaining:
    config = group.config
    return remaining(group.stream.status(), job=config.job, group=config.group, step=group.step)


def _save(group: "ReplicaGroup", saves: Saves) -> None:
    with group.stopwatch.time(Doing.SAVE):
        saves.before_leaving()
