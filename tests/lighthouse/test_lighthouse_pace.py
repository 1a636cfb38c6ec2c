"""Steps, strides and limits: who stands still, who is excused, and who is merely slow."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.model import Phase, parse_replica_id
from lighthouse.pace import Pace, PaceRules, Standing, slowness
from lighthouse.slot import Line, Slot

RULES = PaceRules(limit_factor=10.0, limit_floor_s=30.0, heal_deadline_s=120.0)


def pace(step_s: float = 1.0, steps: int = 5) -> Pace:
    made = Pace(RULES)
    for step in range(steps + 1):
        made.quorum(step, step * step_s)
    return made


def slot(group: int, phase: Phase, moved_s: float = 0.0, *, asks: bool = False) -> Slot:
    return Slot(
        id=parse_replica_id(f"job/{group}:a"),
        lines={0: Line(stream=group)},
        phase=phase,
        moved_s=moved_s,
        calls=[1] if asks else [],
    )


def test_the_typical_step_is_the_median_of_the_last_ones() -> None:
    assert pace().typical_step_s == 1.0
    made = pace(step_s=2.0)
    made.quorum(6, 500.0)
    assert made.typical_step_s == 2.0
    assert Pace(RULES).typical_step_s is None


def test_a_quorum_for_the_same_step_is_no_stride() -> None:
    made = pace(steps=1)
    made.quorum(1, 100.0)
    made.quorum(2, 101.0)
    assert made.typical_step_s == 1.0


def test_limits() -> None:
    assert pace(step_s=1.0).limit_s(Phase.COMPUTE) == 30.0
    assert pace(step_s=7.0).limit_s(Phase.COMPUTE) == 70.0
    assert pace(step_s=1.0).limit_s(Phase.HEAL) == 120.0
    assert pace(step_s=20.0).limit_s(Phase.HEAL) == 200.0
    assert Pace(RULES).limit_s(Phase.COMPUTE) == 300.0, "no step is known yet"


@pytest.mark.parametrize(
    ("still_s", "standing"),
    [(15.0, None), (15.1, Standing.SUSPECT), (30.0, Standing.SUSPECT), (30.1, Standing.STUCK)],
)
def test_suspect_from_half_the_limit_and_stuck_beyond_it(still_s: float, standing: Standing | None) -> None:
    members = [slot(0, Phase.COMPUTE), slot(1, Phase.REDUCE)]
    stalls = pace().stalls(members, still_s, over=False)
    assert [stall.standing for stall in stalls] == ([] if standing is None else [standing])
    assert all(stall.slot is members[0] for stall in stalls)


def test_nobody_is_blamed_while_nobody_waits() -> None:
    members = [slot(0, Phase.COMPUTE), slot(1, Phase.COMPUTE)]
    assert pace().stalls(members, 1e6, over=False) == []


def test_a_heal_has_its_own_deadline() -> None:
    members = [slot(0, Phase.HEAL), slot(1, Phase.QUORUM, asks=True)]
    assert pace().stalls(members, 119.0, over=False)[0].standing is Standing.SUSPECT
    assert pace().stalls(members, 121.0, over=False)[0].standing is Standing.STUCK


def test_who_waits_is_excused_and_in_the_reduce_only_while_the_attempt_lasts() -> None:
    members = [slot(0, Phase.REDUCE), slot(1, Phase.QUORUM, asks=True)]
    assert pace().stalls(members, 1e6, over=False) == []
    seen = pace()
    assert seen.stalls(members, 1e6, over=True) == [], "it has only just been told"
    stuck = seen.stalls(members, 1e6 + 31.0, over=True)
    assert [stall.slot for stall in stuck] == [members[0]]
    seen.quorum(1, 1e6 + 32.0)
    assert seen.stalls(members, 1e6 + 33.0, over=True) == [], "a new attempt has a clock of its own"


def test_what_was_done_before_anybody_waited_is_not_held_against_it() -> None:
    members = [slot(0, Phase.COMMIT), slot(1, Phase.QUORUM, moved_s=1000.0, asks=True)]
    assert pace().stalls(members, 1010.0, over=False) == []
    (stall,) = pace().stalls(members, 1031.0, over=False)
    assert (stall.slot, stall.standing, stall.still_s) == (members[0], Standing.STUCK, 31.0)


def test_one_without_a_stream_is_not_watched() -> None:
    members = [slot(0, Phase.COMPUTE), slot(1, Phase.QUORUM, asks=True)]
    members[0].lines.clear()
    assert pace().stalls(members, 1e6, over=False) == []


def test_all_in_the_reduce_for_too_long_is_a_jam() -> None:
    members = [slot(0, Phase.REDUCE), slot(1, Phase.REDUCE)]
    assert pace().is_jammed(members, 31.0)
    assert not pace().is_jammed(members, 30.0)
    members[1].move(0, Phase.COMPUTE, 1.0)
    assert not pace().is_jammed(members, 100.0)
    assert not pace().is_jammed([slot(0, Phase.QUORUM, asks=True)], 1e6)


@pytest.mark.parametrize("over", [False, True])
def test_one_that_saves_may_take_as_long_as_it_needs(over: bool) -> None:
    members = [slot(0, Phase.SAVE), slot(1, Phase.QUORUM, asks=True), slot(2, Phase.REDUCE)]
    seen = pace()
    assert [seen.stalls(members, now_s, over=over) for now_s in (10.0, 25.0)] == [[], []]
    stalls = seen.stalls(members, 1e6, over=over)
    assert members[0] not in [stall.slot for stall in stalls]
    members[0].move(0, Phase.COMMIT, 1e6)
    assert members[0] in [stall.slot for stall in seen.stalls(members, 1e6 + 31.0, over=over)]


def test_others_that_wait_for_one_that_saves_are_no_jam() -> None:
    members = [slot(0, Phase.SAVE), slot(1, Phase.REDUCE), slot(2, Phase.REDUCE)]
    assert not pace().is_jammed(members, 1e6)
    members[0].move(0, Phase.REDUCE, 1e6)
    assert not pace().is_jammed(members, 1e6 + 30.0)
    assert pace().is_jammed(members, 1e6 + 31.0)


def computing(group: int, *durations_s: float) -> Slot:
    made = slot(group, Phase.COMPUTE)
    made.computed_s = deque(durations_s, maxlen=8)
    return made


def test_slowness_is_measured_against_the_median_of_the_others() -> None:
    ratios = slowness([computing(0, *[1.0] * 5), computing(1, *[1.2] * 5), computing(2, *[2.2] * 5)])
    assert ratios[2] == pytest.approx(2.0)
    assert ratios[0] < 1.0


def test_one_slow_step_or_too_few_of_them_say_nothing() -> None:
    once = computing(1, 1.0, 1.0, 9.0, 1.0, 1.0)
    assert slowness([computing(0, *[1.0] * 5), once])[1] == 1.0
    assert slowness([computing(0, *[1.0] * 5), computing(1, 9.0)]) == {}


@given(st.lists(st.floats(0.01, 100.0), min_size=5, max_size=8), st.integers(2, 6))
def test_equals_are_never_slow(durations_s: list[float], groups: int) -> None:
    ratios = slowness([computing(group, *durations_s) for group in range(groups)])
    assert set(ratios.values()) == {1.0}
