"""The queue of chunks: each is verified once, whatever fails, and a failed one goes elsewhere first."""

from hypothesis import given
from hypothesis import strategies as st

from replica.transfer.allotment import Allotment

USABLE = {"a", "b"}


@given(st.integers(0, 12), st.data())
def test_every_chunk_is_verified_once_whatever_fails(chunks: int, data: st.DataObject) -> None:
    allotment, flying, done = Allotment(chunks), [], []
    for _ in range(200):
        if allotment.complete:
            break
        donor = data.draw(st.sampled_from(["a", "b"]))
        offered = allotment.has_work(donor, USABLE)
        chunk = allotment.take(donor, USABLE)
        assert (chunk is not None) == offered
        if chunk is not None:
            assert chunk not in done
            assert chunk not in [other for other, _ in flying]
            flying.append((chunk, donor))
        assert allotment.in_flight == len(flying)
        if flying and data.draw(st.booleans()):
            chunk, donor = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            if data.draw(st.booleans()):
                allotment.verified(chunk)
                done.append(chunk)
            else:
                allotment.failed(chunk, donor)
    assert allotment.complete == (sorted(done) == list(range(chunks)))
    assert allotment.pending == (len(done) + len(flying) < chunks)


def test_a_failed_chunk_is_asked_elsewhere_first() -> None:
    allotment = Allotment(2)
    assert allotment.take("a", USABLE) == 0
    allotment.failed(0, "a")
    assert allotment.take("a", USABLE) == 1
    assert allotment.take("a", USABLE) is None
    assert allotment.take("b", USABLE) == 0
    allotment.failed(0, "b")
    assert allotment.take("a", USABLE) == 0  # all have failed on it: anyone may try again


def test_the_only_donor_left_is_asked_again() -> None:
    allotment = Allotment(1)
    assert allotment.take("a", {"a"}) == 0
    allotment.failed(0, "a")
    assert allotment.has_work("a", {"a"})
    assert allotment.has_work("a", set())
    assert not allotment.has_work("a", USABLE)
