"""What the table of replicas says, put the way the decision wants to see it. No I/O."""

from collections.abc import Mapping

from lighthouse.model import Key
from lighthouse.quorum import Ask, Situation
from lighthouse.table import Table


def situation_of(
    table: Table, last: Mapping[Key, str], now_s: float, *, warm_until_s: float, record_step: int
) -> Situation:
    """The situation now; `last` are the replica ids of the last quorum by key."""
    living = table.roll.living(now_s)
    slots = [(key, table.slots[key]) for key in living]
    asks = {
        key: Ask(member=slot.member, joined_s=slot.joined_s)
        for key, slot in slots
        if slot.calls and slot.member is not None and slot.joined_s is not None
    }
    members = frozenset(key for key, slot in slots if last.get(key) == slot.id.text)
    return Situation(
        asks=asks,
        living=living,
        asked=frozenset(key for key, slot in slots if slot.has_asked),
        members=members,
        had_quorum=bool(last),
        members_lost=len(members) < len(last),
        unheard=unheard(table, last) if now_s < warm_until_s else frozenset(),
        warm_until_s=warm_until_s,
        record_step=record_step,
        gathering=not last and any(slot.step > 0 for _, slot in slots),
    )


def unheard(table: Table, last: Mapping[Key, str]) -> frozenset[Key]:
    """Members on record that have not asked since the start and are not known to be dead.

    Another incarnation that has attached or asked proves that the one on record is dead.
    """
    return frozenset(
        key
        for key, text in last.items()
        if (slot := table.slots.get(key)) is None
        or not (slot.has_asked or slot.gone or (slot.id.text != text and slot.attached))
    )
