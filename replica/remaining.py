"""Who is left of a job when a group has said goodbye: read from the Lighthouse's status document. Pure."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from lighthouse.client import SlotState

_LIVING = (SlotState.TRAINING, SlotState.ASKING, SlotState.JOINING)


class Remaining(IntEnum):
    """Whether another group has the state that one leaves behind. Shared between ranks as integers."""

    OTHERS = 0
    NOBODY = 1
    UNKNOWN = 2


def remaining(document: Mapping[str, Any] | None, *, job: str, group: int, step: int) -> Remaining:
    """Who has the state of `step`, or is about to, now that `group` has left; None: nobody could be asked.

    Others are those that live, and those that left later: the last of them sees nobody, whatever the
    order, and no two do, since the Lighthouse takes one goodbye after the other. One that is a step
    behind counts: it has not said so yet, or commits the same bits next.
    """
    if document is None:
        return Remaining.UNKNOWN
    groups: list[Mapping[str, Any]] = next(
        (each["groups"] for each in document["jobs"] if each["job"] == job), []
    )
    rows = {row["group"]: row for row in groups}
    if rows and (group not in rows or rows[group]["state"] != SlotState.LEFT):
        return Remaining.UNKNOWN  # the goodbye has not arrived
    others = [row for number, row in rows.items() if number != group and row["step"] >= max(1, step - 1)]
    if any(row["state"] in _LIVING for row in others):
        return Remaining.OTHERS
    left_s = [row.get("gone_s") for row in others if row["state"] == SlotState.LEFT]
    return _who_left_last(left_s, rows[group].get("gone_s")) if left_s else Remaining.NOBODY


def _who_left_last(others_s: list[float | None], gone_s: float | None) -> Remaining:
    """How long ago each has left; None: an older Lighthouse does not say."""
    known_s = [other_s for other_s in others_s if other_s is not None]
    if gone_s is None or len(known_s) < len(others_s):
        return Remaining.UNKNOWN
    return Remaining.OTHERS if min(known_s) < gone_s else Remaining.NOBODY
