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
# How long it may take, beside the save itself, to learn who is left.
ASK_S = 10.0


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
    may_save_s = 0.0 if done or last else _may_save_s(group)
    # A new incarnation of this group may come before the save is there, and must not end it.
    group.notices.leave()
    # No rank may end, and break its stream, before rank 0 has said goodbye for all.
    group.ranks.first_then_all(
        lambda: group.stream.goodbye(finished=finished, step=group.step, may_save_s=may_save_s),
        timeout_s=GOODBYE_S,
    )
    try:
        if not done and not last and group.step > 0:
            last = _part(group)
    finally:
        if may_save_s and group.rank == 0:
            group.stream.left()
    waited_s = round(group.stopwatch.seconds().save, 3)
    group.record.group_event(EventKind.FINISHED, step=group.step, save_s=waited_s)
    if group.saves is not None and group.saves.failure is not None and (done or last):
        raise UserError(group.saves.failure)


def _may_save_s(group: "ReplicaGroup") -> float:
    """For how long after the goodbye who starts anew has to wait for this group's save."""
    backstop = group.config.backstop
    return 0.0 if backstop is None or group.step == 0 else backstop.grace_s + ASK_S


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
    left = _ask(group)
    if group.saves is None:
        if left is Remaining.NOBODY and group.rank == 0:
            group.warn(
                f"no other group lives, and no backstop is configured: the state of step {group.step} is "
                f"lost with this one"
            )
    elif left is not Remaining.OTHERS:
        _save(group, group.saves)
        if left is Remaining.UNKNOWN and group.saves.failure is not None:
            left = Remaining.OTHERS if group.saves.is_fenced else _ask(group)
    else:
        with group.stopwatch.time(Doing.SAVE):
            group.saves.settle()
    return left is not Remaining.OTHERS


def _ask(group: "ReplicaGroup") -> Remaining:
    """Rank 0 asks, all learn. A collective."""
    left, config = Remaining.OTHERS, group.config
    if group.rank == 0:
        left = remaining(group.stream.status(), job=config.job, group=config.group, step=group.step)
    return Remaining(group.ranks.share([left])[0][0])


def _save(group: "ReplicaGroup", saves: Saves) -> None:
    with group.stopwatch.time(Doing.SAVE):
        saves.before_leaving()
