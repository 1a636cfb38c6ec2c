"""Which state is taken when donors differ: never one that half of them or more do not offer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from replica.transfer.agreement import Agreed, Open, agree, difference
from replica.transfer.manifest import Layout, Manifest, TensorSpec

A, B, C = b"a", b"b", b"c"


def test_a_lone_donor_is_believed_once_nobody_else_may_speak() -> None:
    assert agree({"1": A}, 0) == Agreed(state_id=A, certain=True)
    assert agree({"1": A}, 1) == Agreed(state_id=A, certain=False)
    assert agree({}, 1) is Open.UNDECIDED
    assert agree({}, 0) is Open.UNDECIDED


def test_two_that_differ_are_refused_and_the_majority_of_three_wins() -> None:
    assert agree({"1": A, "2": B}, 1) is Open.UNDECIDED
    assert agree({"1": A, "2": B}, 0) is Open.DISAGREEMENT
    assert agree({"1": A, "2": B, "3": B}, 0) == Agreed(state_id=B, certain=True)
    assert agree({"1": A, "2": A}, 1) == Agreed(state_id=A, certain=True)
    assert agree({"1": A, "2": A, "3": B, "4": B}, 0) is Open.DISAGREEMENT
    assert agree({"1": A, "2": B, "3": C}, 0) is Open.DISAGREEMENT


@given(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=7), st.integers(0, 4), st.data())
def test_what_is_certain_stays_whatever_is_still_said(
    said: list[bytes], waiting: int, data: st.DataObject
) -> None:
    votes = {str(number): vote for number, vote in enumerate(said)}
    verdict = agree(votes, waiting)
    if isinstance(verdict, Agreed) and verdict.certain:
        later = data.draw(st.lists(st.sampled_from([A, B, C]), max_size=waiting))
        final = agree(votes | {f"late {number}": vote for number, vote in enumerate(later)}, 0)
        assert final == verdict
    if waiting == 0:
        winner, count = Counter(said).most_common(1)[0]
        expected = Agreed(state_id=winner, certain=True) if 2 * count > len(said) else Open.DISAGREEMENT
        assert verdict == expected


def test_a_difference_names_the_first_tensor() -> None:
    tensors = tuple(TensorSpec(name=name, dtype="uint8", shape=(1024,)) for name in "abc")
    layout = Layout(tensors=tensors, chunk_bytes=1024)
    one = Manifest(step=1, layout=layout, digests=(b"1" * 8, b"2" * 8, b"3" * 8))
    other = Manifest(step=1, layout=layout, digests=(b"1" * 8, b"x" * 8, b"y" * 8))
    assert difference(one, other) == "b (2 of 3 chunks differ)"
    wide = Layout(tensors=tensors, chunk_bytes=3072)
    assert (
        difference(one, Manifest(step=1, layout=wide, digests=(b"1" * 8,))) == "chunks of 1024 and 3072 bytes"
    )
    less = Layout(tensors=tensors[:1], chunk_bytes=1024)
    assert difference(one, Manifest(step=1, layout=less, digests=(b"1" * 8,))) == "the tensors differ"
    assert difference(one, Manifest(step=2, layout=layout, digests=one.digests)) == "the steps differ"
