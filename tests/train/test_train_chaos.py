"""The kill schedule: reproducible, fair, and never against the last group that has the state."""

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.errors import UserError
from train.chaos import QUIET_STEPS, Chaos, KillAt, may_kill, parse_kill_at, planned_kills
from train.cluster.snapshot import GroupSnapshot, GroupState, Snapshot

T, D, H = GroupState.TRAINING, GroupState.DEAD, GroupState.HEALING


def seen(*states: GroupState, step: int = 10, steps: int | None = 100, lag: int = 0) -> Snapshot:
    """A cluster whose groups are in these states; the last one is lag steps behind."""
    behind = [0] * (len(states) - 1) + [lag]
    groups = tuple(
        GroupSnapshot(group=number, state=state, step=step - less)
        for number, (state, less) in enumerate(zip(states, behind, strict=True))
    )
    return Snapshot(
        step=step, steps=steps, loss=None, step_s=None, kills=0, lighthouse_up=True, groups=groups
    )


@given(st.integers(), st.integers(2, 9), st.floats(0.1, 1e4))
def test_every_group_has_its_turn_in_every_round(seed: int, groups: int, every_s: float) -> None:
    plan = list(islice(planned_kills(seed=seed, groups=groups, every_s=every_s), groups * 4))
    for start in range(0, len(plan), groups):
        assert {kill.group for kill in plan[start : start + groups]} == set(range(groups))
    assert all(every_s / 2 <= kill.gap_s <= every_s * 1.5 for kill in plan)
    assert all(0 <= kill.phase_s < 1 for kill in plan)


def test_the_plan_is_a_function_of_the_seed() -> None:
    def plan(seed: int) -> list[object]:
        return list(islice(planned_kills(seed=seed, groups=3, every_s=15.0), 30))

    assert plan(0) == plan(0)
    assert len({tuple(plan(seed)) for seed in range(20)}) == 20
    assert {
        kill.group for seed in range(20) for kill in islice(planned_kills(seed=seed, groups=3, every_s=1), 1)
    } == {0, 1, 2}


@given(
    st.lists(st.sampled_from(list(GroupState)), min_size=1, max_size=5), st.integers(0, 4), st.integers(0, 9)
)
def test_the_last_group_with_the_state_is_never_killed(
    states: list[GroupState], lag: int, group: int
) -> None:
    now = seen(*states, lag=lag)
    if may_kill(group, now):
        left = [each for each in now.groups if each.group != group and each.state is T]
        assert states[group] is T
        assert any(each.step >= now.step - 1 for each in left)


def test_may_kill() -> None:
    assert may_kill(0, seen(T, T))
    assert not may_kill(0, seen(T, D))
    assert not may_kill(1, seen(T, H))
    assert not may_kill(0, seen(T, T, lag=2))  # the other one is not up to date
    assert may_kill(1, seen(T, T, lag=2))
    assert not may_kill(0, seen(T))


def run(chaos: Chaos, until_s: float, snapshot: Snapshot) -> list[tuple[float, int]]:
    """The kills of a run in which every victim is back at once, looked at ten times a second."""
    kills = []
    for tenth in range(int(until_s * 10)):
        victim = chaos.victim(tenth / 10, snapshot)
        if victim is not None:
            kills.append((tenth / 10, victim))
    return kills


@given(st.integers(0, 1000))
def test_a_storm_keeps_its_pace_and_hits_all(seed: int) -> None:
    kills = run(Chaos(seed=seed, groups=3, every_s=15.0), 300.0, seen(T, T, T))
    gaps = [after - before for (before, _), (after, _) in pairwise(kills)]
    assert all(7.4 <= gap <= 23.7 for gap in gaps)
    assert {group for _, group in kills} == {0, 1, 2}
    assert 13 <= len(kills) <= 30


def test_a_storm_waits_for_the_first_steps_of_all() -> None:
    chaos = Chaos(seed=0, groups=3, every_s=1.0)
    assert run(chaos, 60.0, seen(T, T, GroupState.STARTING)) == []
    assert run(chaos, 60.0, seen(T, T, T)) != []


def test_a_storm_waits_for_its_victim_and_then_for_a_random_phase() -> None:
    phases = set()
    for seed in range(30):
        chaos = Chaos(seed=seed, groups=2, every_s=2.0)
        assert chaos.victim(0.0, seen(T, T)) is None
        first = next(planned_kills(seed=seed, groups=2, every_s=2.0))
        away = seen(*(D if group == first.group else T for group in range(2)))
        assert chaos.victim(100.0, away) is None
        assert chaos.victim(200.0, seen(T, T)) is None or first.phase_s == 0
        assert chaos.victim(200.0 + first.phase_s, seen(T, T)) == first.group
        phases.add(round(first.phase_s, 1))
    assert len(phases) > 5


def test_no_storm_in_the_last_steps_and_none_if_not_asked_for() -> None:
    last = seen(T, T, step=100 - QUIET_STEPS)
    chaos = Chaos(seed=0, groups=2, every_s=1.0)
    assert run(chaos, 60.0, last) == []
    assert run(Chaos(seed=0, groups=2, every_s=0.0), 600.0, seen(T, T)) == []
    assert run(Chaos(seed=0, groups=2, every_s=1.0), 60.0, seen(T, T, step=10**6, steps=None)) != []


def test_kills_by_step_come_once_and_when_they_may() -> None:
    chaos = Chaos(
        seed=0, groups=3, at=(KillAt(step=20, group=1), KillAt(step=20, group=0), KillAt(step=5, group=2))
    )
    assert chaos.victim(0.0, seen(T, T, T, step=4)) is None
    assert chaos.victim(0.0, seen(T, T, T, step=6)) == 2
    assert chaos.victim(0.0, seen(T, T, T, step=19)) is None
    assert chaos.victim(0.0, seen(T, T, T, step=20)) == 0
    assert chaos.victim(0.0, seen(D, T, D, step=20)) is None  # group 1 has the only state
    assert chaos.victim(0.0, seen(D, T, T, step=22)) == 1
    assert chaos.victim(0.0, seen(T, T, T, step=99)) is None


def test_reading_kill_at() -> None:
    assert parse_kill_at("20:1", groups=3, steps=50) == KillAt(step=20, group=1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "STEP:GROUP"),
        ("20", "STEP:GROUP"),
        ("a:1", "STEP:GROUP"),
        ("20:-1", "STEP:GROUP"),
        ("1:2:0", "STEP:GROUP"),
        ("20:3", "no group 3, groups are 0 to 2"),
        ("50:1", "between 1 and 49"),
        ("0:1", "between 1 and 49"),
    ],
)
def test_bad_kill_at_is_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse_kill_at(text, groups=3, steps=50)
    assert str(caught.value).startswith(f"--kill-at {text}")
