"""Eras: borders only where nobody is left, the trajectory that counts, and which bits must be equal."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_history import History

from replica.backstop.names import SaveName
from replica.ledger import EventKind, LedgerLine, Outcome
from train.evidence.eras import find_eras
from train.evidence.files import Event, Evidence
from train.evidence.history import commits


def line(group: int, life: str, step: int, quorum_id: int, **values: Any) -> LedgerLine:
    return LedgerLine(
        t=float(quorum_id), group=group, incarnation=life, step=step, quorum_id=quorum_id,
        outcome=Outcome.COMMITTED, rounds=((0, group), (1, group)), participants=(group,), **values,
    )  # fmt: skip


def read(group: int, life: str, step: int, save: str = "a") -> Event:
    values = {"group": group, "incarnation": life, "step": step, "save": save, "digest": None}
    return Event(t=0.0, kind=EventKind.BACKSTOP_READ, values=values)


def named(step: int, quorum_id: int) -> str:
    return SaveName(step=step, quorum_id=quorum_id, incarnation="0123abcd").text


def started(life: str, rounds: int, ranks: int, mode: str = "exact") -> Event:
    values = {"group": 0, "incarnation": life, "rounds": rounds, "ranks": ranks, "mode": mode}
    return Event(t=0.0, kind=EventKind.GROUP_STARTED, values=values)


def run(lines: list[LedgerLine], *events: Event) -> Evidence:
    groups = sorted({each.group for each in lines})
    ledgers = {group: tuple(each for each in lines if each.group == group) for group in groups}
    return Evidence(out=Path("run"), ledgers=ledgers, events=events)


def test_a_run_without_a_disaster_is_one_era() -> None:
    lines = [line(0, "a", step, 1) for step in range(5)]
    eras = find_eras(run(lines))
    assert [(era.step, era.rounds, era.parent) for era in eras.all] == [(0, 2, None)]
    assert eras.disasters == ()
    assert all(eras.counts(each) for each in lines)


def test_an_era_begins_with_the_first_quorum_of_those_who_read_a_save() -> None:
    before = [line(0, "a", step, 1) for step in range(5)]
    after = [line(0, "b", step, 7) for step in range(3, 6)]
    eras = find_eras(run(before + after, read(0, "b", 3)))
    (era,) = eras.disasters
    assert (era.number, era.first_quorum, era.step, era.parent) == (1, 7, 3, 0)
    assert [eras.counts(each) for each in before] == [True, True, True, False, False]
    assert all(eras.counts(each) for each in after)


def test_a_read_while_another_life_goes_on_is_no_border() -> None:
    lines = [line(0, "a", step, 1) for step in range(5)] + [line(0, "b", 5, 7)]
    survivor = [line(1, "c", 4, 1), line(1, "c", 5, 7)]
    assert find_eras(run(lines + survivor, read(0, "b", 3))).disasters == ()


def test_a_group_that_read_the_save_late_belongs_to_the_same_era() -> None:
    lines = [line(0, "a", 0, 1), line(0, "b", 1, 7), line(0, "b", 2, 8), line(1, "c", 2, 8)]
    (era,) = find_eras(run(lines, read(0, "b", 1), read(1, "c", 1))).disasters
    assert [event.group for event in era.reads] == [0, 1]


def test_a_life_that_read_a_save_and_met_no_quorum_begins_nothing() -> None:
    assert find_eras(run([line(0, "a", 0, 1)], read(0, "b", 1))).disasters == ()


def test_evidence_may_begin_with_a_restore() -> None:
    eras = find_eras(run([line(0, "b", 40, 7)], read(0, "b", 40)))
    assert [(era.step, era.parent) for era in eras.all] == [(40, None)]
    assert len(eras.disasters) == 1


def test_the_trajectory_winds_through_the_eras_that_made_the_saves() -> None:
    first = [line(0, "a", step, 1) for step in range(6)]
    second = [line(0, "b", step, 5) for step in range(3, 9)]
    third = [line(0, "c", step, 9) for step in range(5, 7)]
    reads = read(0, "b", 3, named(3, 1)), read(0, "c", 5, named(5, 1))
    eras = find_eras(run(first + second + third, *reads))
    assert eras.all[2].parent == 0  # what the second era had made was passed over
    counted = [(each.incarnation, each.step) for each in first + second + third if eras.counts(each)]
    assert counted == [*(("a", step) for step in range(5)), ("c", 5), ("c", 6)]


def test_the_era_that_made_a_save_is_known_from_its_name_or_else_its_step() -> None:
    first = [line(0, "a", step, 1) for step in range(6)]
    second = [line(0, "b", step, 5) for step in range(3, 9)]
    lines = [*first, *second, line(0, "c", 5, 9)]
    first_read = read(0, "b", 3, "x")
    assert find_eras(run(lines, first_read, read(0, "c", 5, "y"))).all[2].parent == 1
    assert find_eras(run(lines, first_read, read(0, "c", 5, named(5, 1)))).all[2].parent == 0
    assert find_eras(run(lines, first_read, read(0, "c", 5, named(5, 5)))).all[2].parent == 1


def test_equal_bits_are_asked_of_equal_numbers_of_ranks_only() -> None:
    lines = [line(0, "a", 5, 1), line(0, "b", 5, 2), line(0, "c", 5, 3), line(0, "d", 5, 4)]
    saves = {"b": named(3, 1), "c": named(3, 1), "d": named(4, 2)}
    reads = [read(0, "b", 3, saves["b"]), read(0, "c", 3, saves["c"]), read(0, "d", 4, saves["d"])]
    shapes = [started("a", 6, 2), started("b", 12, 1), started("c", 6, 2), started("d", 6, 2)]
    exact = find_eras(run(lines, *reads, *shapes))
    assert [(era.rounds, era.ranks) for era in exact.all] == [(6, 2), (12, 1), (6, 2), (6, 2)]
    assert [era.past_of(5) for era in exact.all] == [
        ((0, 6),),
        ((0, 6), (3, 12)),
        ((0, 6),),
        ((0, 6), (3, 12), (4, 6)),
    ]
    assert exact.all[3].past_of(3) == exact.all[1].past_of(3)
    fast = find_eras(run(lines, *reads, *(started(life, 6, 2, "fast") for life in "abcd")))
    assert len({era.past_of(5) for era in fast.all}) == 4


def test_a_save_of_the_step_with_which_its_era_began_has_the_bits_of_before() -> None:
    lines = [line(0, "a", 5, 1), line(0, "b", 5, 2), line(0, "c", 5, 3)]
    shapes = [started("a", 6, 2), started("b", 12, 1), started("c", 6, 2)]
    eras = find_eras(run(lines, read(0, "b", 3), read(0, "c", 3), *shapes))
    assert eras.all[2].parent == 1
    assert eras.all[2].past_of(5) == eras.all[0].past_of(5)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**9), disasters=st.integers(0, 3), regroups=st.booleans(),
    mode=st.sampled_from(["fast", "exact"]),
)  # fmt: skip
def test_the_trajectory_has_each_step_once_and_ends_with_the_job(
    seed: int, disasters: int, regroups: bool, mode: str
) -> None:
    made = History(seed, disasters=disasters, regroups=regroups, mode=mode)
    evidence = made.evidence()
    eras = find_eras(evidence)
    counted = [each for each in commits(evidence.lines) if eras.counts(each)]
    assert sorted({each.step for each in counted}) == list(range(14))
    assert {eras.of(each).number for each in counted if each.step == 13} == {len(eras.all) - 1}
    assert len(eras.disasters) <= disasters
    assert made.state in {each.digest for each in counted if each.step == 13}
