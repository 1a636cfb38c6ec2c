"""When a save is due, and who writes it."""

from replica.backstop.schedule import Schedule, writer_of


def schedule(every_steps: int = 0, every_s: float = 0.0) -> Schedule:
    return Schedule(every_steps=every_steps, every_s=every_s)


def test_after_every_so_many_steps() -> None:
    due = [step for step in range(1, 100) if schedule(every_steps=25).due(step, since_s=0.0)]
    assert due == [25, 50, 75]


def test_after_so_much_time_whatever_the_step() -> None:
    assert not schedule(every_s=60.0).due(7, since_s=59.9)
    assert schedule(every_s=60.0).due(7, since_s=60.0)


def test_whichever_comes_first() -> None:
    both = schedule(every_steps=10, every_s=60.0)
    assert both.due(10, since_s=1.0)
    assert both.due(3, since_s=61.0)
    assert not both.due(3, since_s=59.0)


def test_only_the_time_needs_a_clock_that_the_ranks_agree_on() -> None:
    assert schedule(every_s=1.0).by_time
    assert not schedule(every_steps=1).by_time


def test_the_lowest_group_that_computed_the_step_writes_and_another_takes_over() -> None:
    assert writer_of((2, 0, 1, 0)) == 0
    assert writer_of((2, 1)) == 1
