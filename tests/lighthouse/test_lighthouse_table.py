"""The table of replicas: bounded, whatever names are invented, and never against those that live."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lighthouse.model import POOL, JobRecord, Refusal, parse_replica_id
from lighthouse.slot import Gone, Line, Slot
from lighthouse.table import Limits, Table

LIMITS = Limits(max_replicas=10, max_buried=5, heartbeat_timeout_s=5.0)


def table_of(job: str) -> Table:
    return Table(record=JobRecord(job=job, quorum_id=0), limits=LIMITS)


def nobody(_slot: Slot) -> bool:
    return False


def beat(table: Table, text: str, now_s: float) -> Slot | Refusal:
    slot, _ = table.enter(parse_replica_id(text), now_s, keep=nobody)
    if isinstance(slot, Slot):
        table.hear(slot, now_s)
    return slot


def test_a_full_table_refuses_newcomers_and_keeps_the_living() -> None:
    table = table_of(POOL)
    for number in range(10_000):
        beat(table, f"invented{number}", 0.001 * number)
        table.mark_silent(0.001 * number)
    assert len(table.slots) <= LIMITS.max_replicas
    assert len(table.roll) <= LIMITS.max_replicas


def test_members_keep_their_place_when_strangers_crowd_in() -> None:
    table = table_of(POOL)
    for now_s in range(100):
        assert isinstance(beat(table, "member", now_s), Slot)
        for number in range(20):
            beat(table, f"stranger{now_s}-{number}", now_s)
        table.mark_silent(now_s)
    assert len(table.slots) == LIMITS.max_replicas


def test_full_of_the_silent_means_room_again() -> None:
    table = table_of(POOL)
    for number in range(10):
        beat(table, f"a{number}", 0.0)
    assert beat(table, "b", 1.0) is Refusal.TABLE_FULL
    table.mark_silent(6.0)
    assert isinstance(beat(table, "b", 6.0), Slot)
    assert list(table.slots) == ["b"]


def test_restarts_of_one_group_do_not_add_up() -> None:
    table = table_of("job")
    for number in range(1000):
        slot = beat(table, f"job/0:{number}", 0.0)
        assert isinstance(slot, Slot)
        assert slot.incarnations == number + 1
    assert len(table.slots) == 1
    assert len(table.lineage.tombs()) == LIMITS.max_buried
    assert beat(table, "job/0:998", 0.0) is Refusal.SUPERSEDED


def test_a_pulse_alone_takes_no_place_from_another() -> None:
    table = table_of("job")
    first = beat(table, "job/0:a", 0.0)
    assert isinstance(first, Slot)
    for gone in (False, True):
        if gone:
            table.lose(first, Gone.STREAM_BROKE, 0.5)
        pulse, effects = table.enter(parse_replica_id("job/0:b"), 1.0, keep=nobody, pulse_only=True)
        assert (pulse, effects) == (Refusal.SUPERSEDED, [])
        assert table.slots[0] is first
    pulse, _ = table.enter(parse_replica_id("job/1:b"), 1.0, keep=nobody, pulse_only=True)
    assert isinstance(pulse, Slot)


def test_a_death_after_a_silence_is_counted_once() -> None:
    table = table_of("job")
    slot = beat(table, "job/0:a", 0.0)
    assert isinstance(slot, Slot)
    table.mark_silent(9.0)
    table.lose(slot, Gone.STREAM_BROKE, 9.5)
    assert table.deaths == {Gone.SILENT: 1}


def test_prune_keeps_what_is_open_or_wanted() -> None:
    table = table_of(POOL)
    for name in ("gone", "streams", "calls", "wanted"):
        beat(table, name, 0.0)
    table.slots["streams"].lines[0] = Line(stream=1)
    table.slots["calls"].calls.append(2)
    table.mark_silent(100.0)
    table.prune(159.0, 60.0, lambda slot: slot.id.text == "wanted")
    assert set(table.slots) == {"gone", "streams", "calls", "wanted"}
    table.prune(160.0, 60.0, lambda slot: slot.id.text == "wanted")
    assert set(table.slots) == {"streams", "calls", "wanted"}


def test_a_broken_stream_is_remembered_as_long_as_a_silence() -> None:
    table = table_of("job")
    slot = beat(table, "job/0:a", 0.0)
    assert isinstance(slot, Slot)
    table.lose(slot, Gone.STREAM_BROKE, 3.0)
    table.prune(62.0, 60.0, nobody)
    assert table.slots
    table.prune(63.0, 60.0, nobody)
    assert not table.slots


def test_one_that_is_turned_away_leaves_no_trace_and_stays_away() -> None:
    table = table_of("job")
    beat(table, "job/0:a", 0.0)
    table.turn_away(parse_replica_id("job/0:b"))
    assert set(table.slots) == {0}, "another incarnation than the one that is there"
    table.turn_away(parse_replica_id("job/0:a"))
    assert not table.slots
    assert not table.deaths
    assert beat(table, "job/0:a", 1.0) is Refusal.SUPERSEDED
    assert isinstance(beat(table, "job/0:c", 1.0), Slot)


def test_whoever_hears_of_ends_hears_of_each_once() -> None:
    ends: list[tuple[str, float]] = []
    table = Table(
        record=JobRecord(job="job", quorum_id=0),
        limits=LIMITS,
        on_end=lambda slot, at_s: ends.append((str(slot.gone), at_s)),
    )
    for group in (0, 1, 2):
        beat(table, f"job/{group}:a", 0.0)
    table.lose(table.slots[0], Gone.STREAM_BROKE, 1.0)
    table.evict(table.slots[0], "why", 2.0)
    table.mark_silent(9.0)
    table.lose(table.slots[1], Gone.STREAM_BROKE, 9.5)
    beat(table, "job/2:b", 10.0)
    assert ends == [("stream_broke", 1.0), ("silent", 9.0), ("silent", 9.0)]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.floats(0, 3)), max_size=200))
def test_bounds_hold_for_any_history(history: list[tuple[int, int, float]]) -> None:
    table = table_of("job")
    now_s = 0.0
    for group, incarnation, gap_s in history:
        now_s += gap_s
        beat(table, f"job/{group}:{incarnation}", now_s)
        table.mark_silent(now_s)
        assert len(table.slots) <= LIMITS.max_replicas
        assert len(table.lineage.tombs()) <= LIMITS.max_buried
        assert table.roll.living(now_s) <= table.slots.keys()
