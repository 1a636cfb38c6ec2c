"""Steps that were committed again: by whom, and whether a disaster or a death excuses it."""

from test_train_eras import line, read, run, started

from train.evidence.files import Evidence
from train.evidence.repeats import Repeat, find_repeats


def repeats(evidence: Evidence) -> list[Repeat]:
    return find_repeats(evidence)


def test_steps_above_the_save_are_restored_over() -> None:
    lines = [line(0, "a", step, 1) for step in range(6)] + [line(0, "b", step, 7) for step in range(3, 9)]
    found = repeats(run(lines, read(0, "b", 3)))
    assert [(each.step, each.restored, each.excused) for each in found] == [
        (step, True, True) for step in (3, 4, 5)
    ]


def test_steps_below_the_save_are_replayed() -> None:
    lines = [line(0, "a", step, 1) for step in range(6)] + [line(0, "b", step, 7) for step in range(2, 9)]
    found = repeats(run(lines, read(0, "b", 4)))
    assert [(each.step, each.excused) for each in found] == [(2, False), (3, False), (4, True), (5, True)]


def test_without_a_read_going_back_is_a_replay() -> None:
    lines = [line(0, "a", step, 1) for step in range(6)] + [line(0, "b", step, 7) for step in range(3, 9)]
    began = started("a", 2, 1)
    assert [each.excused for each in repeats(run(lines, began))] == [False, False, True]


def test_without_any_event_a_read_is_not_ruled_out() -> None:
    lines = [line(0, "a", step, 1) for step in range(6)] + [line(0, "b", step, 7) for step in range(3, 9)]
    assert all(each.excused for each in repeats(run(lines)))
    # But a life that had the step and goes on has taken it back.
    assert not any(each.excused for each in repeats(run([*lines, line(0, "a", 9, 8)])))


def test_a_step_that_only_the_dead_had_is_excused_after_a_disaster_too() -> None:
    """The first era had come to step 9: that does not make step 4 of the second a deep one."""
    first = [line(0, "a", step, 1) for step in range(9)]
    second = [
        line(0, "b", 3, 5),
        line(1, "c", 3, 5),
        line(1, "c", 4, 5),
        line(0, "b", 4, 6),
        line(0, "b", 5, 6),
    ]
    found = repeats(run(first + second, read(0, "b", 3), read(1, "c", 3)))
    again = [each for each in found if each.quorum_id == 6 and each.step == 4]
    assert [(each.restored, each.deeper, each.excused) for each in again] == [(False, False, True)]


def test_a_life_that_had_the_step_and_lives_is_named() -> None:
    lines = [line(0, "a", 0, 1), line(0, "a", 1, 1), line(0, "a", 1, 2)]
    assert [(each.takers, each.excused) for each in repeats(run(lines))] == [(((0, "a"),), False)]
