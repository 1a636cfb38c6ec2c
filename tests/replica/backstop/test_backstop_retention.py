"""What may go from a store: never what is kept, never what may be in flight, and the same for all who ask."""

from hypothesis import given
from hypothesis import strategies as st

from replica.backstop.names import PARTIAL, TRASH, SaveName, trash_name
from replica.backstop.retention import superfluous

NAMES = st.builds(
    SaveName,
    step=st.integers(0, 5),
    quorum_id=st.integers(0, 3),
    incarnation=st.sampled_from(["000000aa", "000000bb"]),
)


def name(step: int, quorum_id: int, incarnation: str = "000000aa") -> SaveName:
    return SaveName(step=step, quorum_id=quorum_id, incarnation=incarnation)


def test_without_a_whole_save_nothing_goes() -> None:
    assert superfluous([name(1, 1).text, name(1, 1).partial, TRASH + "x"], [], keep=1) == []


def test_what_goes_and_what_stays() -> None:
    whole = [name(9, 4), name(8, 4), name(7, 3)]
    flying = [name(9, 4, "000000bb").partial, name(1, 5).partial, name(3, 4, "000000bb").text]
    given_up = [name(9, 3).partial, name(9, 3, "000000bb").text, trash_name(name(2, 2).text)]
    own_older = name(5, 4).partial
    folders = [*(each.text for each in whole), *flying, *given_up, own_older, "notes", "step-1"]
    assert superfluous(folders, whole, keep=2) == sorted([*given_up, name(7, 3).text])
    assert superfluous(folders, whole, keep=2, own=name(9, 4)) == sorted(
        [*given_up, name(7, 3).text, own_older]
    )


@given(st.sets(NAMES), st.data(), st.integers(1, 4))
def test_it_keeps_what_it_must(names: set[SaveName], data: st.DataObject, keep: int) -> None:
    whole = [each for each in sorted(names, key=lambda n: n.order, reverse=True) if data.draw(st.booleans())]
    partial = [each.partial for each in names if data.draw(st.booleans())]
    folders = [*(each.text for each in names), *partial, "notes"]
    own = data.draw(st.none() | NAMES)
    gone = superfluous(folders, whole, keep=keep, own=own)
    assert set(gone) <= set(folders) - {"notes"}
    assert not set(gone) & {each.text for each in whole[:keep]}
    assert set(superfluous(folders, whole, keep=keep)) <= set(gone)
    assert not whole or {each.text for each in whole[keep:]} <= set(gone)
    for folder in set(gone) - {each.text for each in whole}:
        left = SaveName.parse(folder.removeprefix(PARTIAL))
        assert left is not None
        mine = own is not None and left.incarnation == own.incarnation and left.order < own.order
        assert left.quorum_id < whole[0].quorum_id or mine
