"""How a group leaves its job: the save of what only it has, its goodbye, and what went wrong with both."""

import logging
from typing import TYPE_CHECKING

from replica.errors import UserError
from replica.goodput import Doing
from replica.ledger import EventKind
from replica.saves import LastSave, Saves

if TYPE_CHECKING:
    from replica.group import ReplicaGroup

LOG = logging.getLogger("headway")
GOODBYE_S = 60.0


def leave(group: "ReplicaGroup") -> None:
    """Say goodbye: the last step is done, this group is drained, or the job ended without it.

    The group that is to save the state it leaves behind ends when that is durable. A collective of the
    group, on the training thread. Raises UserError where the state could not be made durable.
    """
    done = group.step >= group.config.steps
    if not done:
        why = "asked to leave" if group.notices.draining else "the job is finished"
        LOG.info("group %s leaves at step %s: %s", group.config.group, group.step, why)
    saves = None if done else group.saves
    alone = saves is not None and saves.is_alone
    if saves is not None and alone:
        _save(group, saves)
    # Without its last save the job is not finished: who starts it again goes on from an older one.
    finished = done and (group.saves is None or group.saves.last is LastSave.DURABLE)
    # No rank may end, and break its stream, before rank 0 has said goodbye for all.
    group.ranks.first_then_all(
        lambda: group.stream.goodbye(finished=finished, step=group.step), timeout_s=GOODBYE_S
    )
    if saves is not None and not alone:  # the others do not wait for it
        _save(group, saves)
    waited_s = round(group.stopwatch.seconds().save, 3)
    group.record.group_event(EventKind.FINISHED, step=group.step, save_s=waited_s)
    if group.saves is not None and group.saves.failure is not None and (done or alone):
        raise UserError(group.saves.failure)


def _save(group: "ReplicaGroup", saves: Saves) -> None:
    with group.stopwatch.time(Doing.SAVE):
        saves.before_leaving()
