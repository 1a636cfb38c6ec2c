"""The kill schedule: reproducible, fair, and never against the last group that has the state."""

from collections.abc import Sequence
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.errors import UserError
from replica.ledger import KillTarget
from train.chaos import (
    QUIET_STEPS,
    Chaos,
    Kill,
    KillAt,
    PlannedKill,
    may_kill,
    parse_kill_at,
    parse_kill_targets,
    planned_kills,
)
from train.cluster.snapshot import GroupSnapshot, GroupState, Snapshot

T, D, H = GroupState.TRAINING, GroupState.DEAD, GroupState.HEALING


def seen(
    *states: GroupState, step: int = 10, steps: int | None = 100, lag: int = 0, lighthouse_up: bool = True
) -> Snapshot:
    """A cluster whose groups are in these states; the last one is lag steps behind."""
    behind = [0] * (len(states) - 1) + [lag]
    groups = tuple(
        GroupSnapshot(group=number, state=state, step=step - less)
        for number, (state, less) in enumerate(zip(states, behind, strict=True))
    )
    return Snapshot(
        step=step, steps=steps, loss=None, step_s=None, kills=0, lighthouse_up=lighthouse_up, groups=groups
    )


def of(group: int) -> Kill:
    """The kill of a whole group."""
    return Kill(target=KillTarget.GROUP, group=group)


def plan(
    count: int,
    *,
    seed: int = 0,
    groups: int = 3,
    ranks: int = 2,
    every_s: float = 15.0,
    targets: Sequence[KillTarget] = tuple(KillTarget),
    rank: int | None = None,
) -> list[PlannedKill]:
    storm = planned_kills(seed=seed, groups=groups, ranks=ranks, every_s=every_s, targets=targets, rank=rank)
    return list(islice(storm, count))


TARGETS = st.lists(st.sampled_from(list(KillTarget)), min_size=1, unique=True)


@given(st.integers(), st.integers(2, 9), st.integers(1, 9), st.floats(0.1, 1e4), TARGETS)
def test_every_target_and_every_group_has_its_turn(
    seed: int, groups: int, ranks: int, every_s: float, targets: list[KillTarget]
) -> None:
    storm = plan(60, seed=seed, groups=groups, ranks=ranks, every_s=every_s, targets=targets)
    kills = [each.kill for each in storm]
    for start in range(0, len(kills) - len(targets), len(targets)):
        assert {kill.target for kill in kills[start : start + len(targets)]} == set(targets)
    hit = [kill.group for kill in kills if kill.group is not None]
    for start in range(0, len(hit) - groups, groups):
        assert set(hit[start : start + groups]) == set(range(groups))
    assert all(every_s / 2 <= each.gap_s <= every_s * 1.5 for each in storm)
    assert all(0 <= each.phase_s < 1 for each in storm)


@given(st.integers(), st.integers(1, 9), TARGETS)
def test_each_kill_says_all_that_its_target_needs(seed: int, ranks: int, targets: list[KillTarget]) -> None:
    for each in plan(30, seed=seed, ranks=ranks, targets=targets):
        kill = each.kill
        lighthouse, one = kill.target is KillTarget.LIGHTHOUSE, kill.target is KillTarget.RANK
        assert (kill.group is None) == lighthouse
        assert (kill.down_s is not None) == lighthouse
        assert (kill.rank is not None) == one
        assert kill.rank is None or 0 <= kill.rank < ranks
        assert kill.down_s is None or 0.2 <= kill.down_s <= 2.0


def test_the_plan_is_a_function_of_the_seed() -> None:
    assert plan(30) == plan(30)
    assert plan(30) == plan(30, targets=tuple(reversed(KillTarget)))
    assert len({tuple(plan(30, seed=seed)) for seed in range(20)}) == 20
    first = [plan(1, seed=seed)[0].kill for seed in range(60)]
    assert {kill.target for kill in first} == set(KillTarget)
    assert {kill.group for kill in first} == {0, 1, 2, None}


def test_every_rank_of_every_group_is_hit_unless_one_is_wanted() -> None:
    kills = [each.kill for each in plan(100, targets=[KillTarget.RANK])]
    assert {(kill.group, kill.rank) for kill in kills} == {(g, r) for g in range(3) for r in range(2)}
    wanted = plan(20, targets=[KillTarget.RANK], rank=1)
    assert {each.kill.rank for each in wanted} == {1}


@given(
    st.lists(st.sampled_from(list(GroupState)), min_size=1, max_size=5), st.integers(0, 4), st.integers(0, 9)
)
def test_the_last_group_with_the_state_is_never_killed(
    states: list[GroupState], lag: int, group: int
) -> None:
    now = seen(*states, lag=lag)
    if may_kill(of(group), now):
        left = [each for each in now.groups if each.group != group and each.state is T]
        assert states[group] is T
        assert any(each.step >= now.step - 1 for each in left)


def test_may_kill() -> None:
    assert may_kill(of(0), seen(T, T))
    assert not may_kill(of(0), seen(T, D))
    assert not may_kill(of(1), seen(T, H))
    assert not may_kill(of(0), seen(T, T, lag=2))  # the other one is not up to date
    assert may_kill(of(1), seen(T, T, lag=2))
    assert not may_kill(of(0), seen(T))


def test_the_lighthouse_may_be_killed_while_a_group_is_away_but_not_twice() -> None:
    kill = Kill(target=KillTarget.LIGHTHOUSE, down_s=1.0)
    assert may_kill(kill, seen(T))
    assert may_kill(kill, seen(T, D))
    assert not may_kill(kill, seen(D, H))
    assert not may_kill(kill, seen(T, T, lighthouse_up=False))
    assert may_kill(of(0), seen(T, T, lighthouse_up=False))


def run(chaos: Chaos, until_s: float, snapshot: Snapshot) -> list[tuple[float, Kill]]:
    """The kills of a run in which every victim is back at once, looked at ten times a second."""
    kills = []
    for tenth in range(int(until_s * 10)):
        kill = chaos.due(tenth / 10, snapshot)
        if kill is not None:
            kills.append((tenth / 10, kill))
    return kills


@given(st.integers(0, 1000))
def test_a_storm_keeps_its_pace_and_hits_all(seed: int) -> None:
    chaos = Chaos(seed=seed, groups=3, ranks=2, every_s=15.0, targets=tuple(KillTarget))
    kills = run(chaos, 300.0, seen(T, T, T))
    gaps = [after - before for (before, _), (after, _) in pairwise(kills)]
    assert all(7.4 <= gap <= 23.7 for gap in gaps)
    assert {kill.group for _, kill in kills} == {0, 1, 2, None}
    assert {kill.target for _, kill in kills} == set(KillTarget)
    assert 13 <= len(kills) <= 30


def test_a_storm_waits_for_the_first_steps_of_all() -> None:
    chaos = Chaos(seed=0, groups=3, every_s=1.0)
    assert run(chaos, 60.0, seen(T, T, GroupState.STARTING)) == []
    assert run(chaos, 60.0, seen(T, T, T)) != []


def test_a_storm_waits_for_its_victim_and_then_for_a_random_phase() -> None:
    phases = set()
    for seed in range(30):
        chaos = Chaos(seed=seed, groups=2, every_s=2.0)
        assert chaos.due(0.0, seen(T, T)) is None
        (first,) = plan(1, seed=seed, groups=2, ranks=1, every_s=2.0, targets=[KillTarget.GROUP])
        away = seen(*(D if group == first.kill.group else T for group in range(2)))
        assert chaos.due(100.0, away) is None
        assert chaos.due(200.0, seen(T, T)) is None or first.phase_s == 0
        assert chaos.due(200.0 + first.phase_s, seen(T, T)) == first.kill
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
    assert chaos.due(0.0, seen(T, T, T, step=4)) is None
    assert chaos.due(0.0, seen(T, T, T, step=6)) == of(2)
    assert chaos.due(0.0, seen(T, T, T, step=19)) is None
    assert chaos.due(0.0, seen(T, T, T, step=20)) == of(0)
    assert chaos.due(0.0, seen(D, T, D, step=20)) is None  # group 1 has the only state
    assert chaos.due(0.0, seen(D, T, T, step=22)) == of(1)
    assert chaos.due(0.0, seen(T, T, T, step=99)) is None


def test_one_rank_is_hit_by_every_kill_if_so_wanted() -> None:
    chaos = Chaos(seed=0, groups=2, ranks=2, every_s=5.0, rank=1, at=(KillAt(step=3, group=0),))
    assert chaos.due(0.0, seen(T, T)) == Kill(target=KillTarget.RANK, group=0, rank=1)
    kills = [kill for _, kill in run(chaos, 100.0, seen(T, T))]
    assert {(kill.target, kill.group, kill.rank) for kill in kills} == {
        (KillTarget.RANK, 0, 1),
        (KillTarget.RANK, 1, 1),
    }


def test_reading_kill_targets() -> None:
    assert parse_kill_targets("lighthouse, rank") == (KillTarget.LIGHTHOUSE, KillTarget.RANK)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no target ''"),
        ("rank,", "no target ''"),
        ("host", "no target 'host', use group, rank, launcher, lighthouse"),
        ("rank,rank", "each target once"),
    ],
)
def test_bad_kill_targets_are_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse_kill_targets(text)
    assert str(caught.value).startswith(f"--kill-targets {text}")


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
