"""Who holds a place, and who never comes back: bounded, and the same after a restart."""

from hypothesis import given
from hypothesis import strategies as st

from lighthouse.lineage import Lineage, digest_of
from lighthouse.model import Refusal, parse_replica_id

OLD, NEW = parse_replica_id("job/3:old"), parse_replica_id("job/3:new")


def lineage(max_holders: int = 8, max_tombs: int = 8) -> Lineage:
    return Lineage(max_holders=max_holders, max_tombs=max_tombs)


def test_the_one_before_is_superseded_for_good() -> None:
    book = lineage()
    book.take(OLD)
    assert (book.is_held_by(OLD), book.is_held_by_another(OLD)) == (True, False)
    assert book.is_held_by_another(NEW)
    book.take(NEW)
    assert book.verdict(OLD) is Refusal.SUPERSEDED
    assert book.verdict(NEW) is None
    assert not book.is_held_by(OLD)


def test_it_comes_back_as_it_was_and_holds_no_uuid() -> None:
    book = lineage()
    for id in (OLD, NEW):
        book.take(id)
    book.bury(NEW, Refusal.EVICTED)
    again = Lineage(holders=book.holders(), tombs=book.tombs(), max_holders=8, max_tombs=8)
    assert (again.verdict(OLD), again.verdict(NEW)) == (Refusal.SUPERSEDED, Refusal.EVICTED)
    assert again.is_held_by(NEW)
    assert not again.changed
    assert again.holders() == ((3, digest_of("job/3:new")),)
    assert "new" not in repr(book.holders()) + repr(book.tombs())


def test_the_first_verdict_stays() -> None:
    book = lineage()
    book.bury(OLD, Refusal.EVICTED)
    book.changed = False
    book.bury(OLD, Refusal.SUPERSEDED)
    assert book.verdict(OLD) is Refusal.EVICTED
    assert not book.changed


def test_pool_replicas_hold_no_place() -> None:
    book = lineage()
    book.take(parse_replica_id("ddp_0:uuid"))
    assert (book.holders(), book.changed) == ((), False)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=200))
def test_it_is_bounded_and_the_latest_is_known(history: list[tuple[int, int]]) -> None:
    book = lineage(max_holders=5, max_tombs=7)
    for group, incarnation in history:
        id = parse_replica_id(f"job/{group}:{incarnation}")
        book.take(id)
        assert book.is_held_by(id)
        assert len(book.holders()) <= 5
        assert len(book.tombs()) <= 7
