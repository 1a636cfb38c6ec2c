"""What the table says becomes what the decision sees."""

from lighthouse.model import JobRecord, Member, parse_replica_id
from lighthouse.situation import situation_of, unheard
from lighthouse.slot import Gone, Line, Slot
from lighthouse.table import Limits, Table

LAST: dict[int | str, str] = {0: "job/0:a", 1: "job/1:a", 2: "job/2:a"}


def table_of(*texts: str) -> Table:
    table = Table(record=JobRecord(job="job", quorum_id=1), limits=Limits())
    for text in texts:
        slot, _ = table.enter(parse_replica_id(text), 0.0, keep=lambda _slot: False)
        assert isinstance(slot, Slot)
        table.hear(slot, 0.0)
    return table


def ask(table: Table, group: int, step: int = 0) -> None:
    slot = table.slots[group]
    slot.begin_to_ask(Member(id=slot.id, step=step), 1, 0.0, keep_joined_s=60.0)


def test_members_are_known_by_incarnation_and_the_dead_do_not_ask() -> None:
    table = table_of("job/0:a", "job/1:b", "job/2:a")
    for group in (0, 1, 2):
        ask(table, group)
    table.lose(table.slots[2], Gone.STREAM_BROKE, 0.5)
    seen = situation_of(table, LAST, 1.0, warm_until_s=0.0, record_step=7)
    assert set(seen.asks) == seen.living == seen.asked == {0, 1}
    assert seen.members == {0}
    assert (seen.had_quorum, seen.members_lost, seen.record_step) == (True, True, 7)


def test_without_a_last_quorum_steps_behind_a_group_mean_that_there_is_a_past() -> None:
    table = table_of("job/0:a", "job/1:a")
    ask(table, 0)
    assert not situation_of(table, {}, 1.0, warm_until_s=5.0, record_step=0).gathering
    ask(table, 1, step=4)
    assert situation_of(table, {}, 1.0, warm_until_s=5.0, record_step=0).gathering
    assert not situation_of(table, LAST, 1.0, warm_until_s=5.0, record_step=0).gathering


def test_unheard_are_those_of_whom_nothing_is_known() -> None:
    table = table_of("job/0:a", "job/1:b")
    assert unheard(table, LAST) == {0, 1, 2}
    ask(table, 0)
    assert unheard(table, LAST) == {1, 2}
    table.slots[1].lines[0] = Line(stream=1)
    assert unheard(table, LAST) == {2}
    assert situation_of(table, LAST, 6.0, warm_until_s=5.0, record_step=0).unheard == frozenset()
