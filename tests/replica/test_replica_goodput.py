"""The account of a group's time: every second has one cause, and none is ever taken back."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.goodput import Cause, Doing, Fate, Meter, cause_of, fate_of
from replica.ledger import Outcome

WORK = (Doing.COMPUTE, Doing.REDUCE, Doing.VOTE, Doing.COMMIT)


@pytest.mark.parametrize("doing", Doing)
@pytest.mark.parametrize("fate", Fate)
def test_the_fate_of_an_attempt_decides_on_its_work_alone(doing: Doing, fate: Fate) -> None:
    settled = {
        Doing.START: Cause.RESTARTING, Doing.QUORUM: Cause.QUORUM, Doing.CONFIGURE: Cause.RECONFIGURING,
        Doing.HEAL: Cause.HEALING, Doing.SAVE: Cause.SAVE, Doing.SCRIPT: Cause.PRODUCTIVE,
    }  # fmt: skip
    work = {
        Fate.COMMITTED: [Cause.PRODUCTIVE, Cause.REDUCE, Cause.REDUCE, Cause.PRODUCTIVE],
        Fate.SPARE: [Cause.SPARE] * 4,
        Fate.JOINED: [Cause.HEALING] * 4,
        Fate.KEPT: [Cause.PRODUCTIVE, *[Cause.ENDED_ATTEMPT] * 3],
        Fate.LOST: [Cause.ENDED_ATTEMPT] * 4,
        Fate.TAKEN_BACK: [Cause.RESTORED_OVER] * 4,
    }
    wanted = settled[doing] if doing in settled else work[fate][WORK.index(doing)]
    assert cause_of(doing, fate) is wanted


def test_the_fate_of_an_attempt_at_its_end() -> None:
    assert fate_of(Outcome.COMMITTED, healed=False, dealt=True) is Fate.COMMITTED
    assert fate_of(Outcome.COMMITTED, healed=False, dealt=False) is Fate.SPARE
    assert fate_of(Outcome.COMMITTED, healed=True, dealt=False) is Fate.JOINED
    assert fate_of(Outcome.RETRIED, healed=True, dealt=False) is Fate.KEPT
    assert fate_of(Outcome.DISCARDED, healed=False, dealt=True) is Fate.LOST


def attempt(meter: Meter, at_s: float, fate: Fate) -> None:
    """One that takes ten seconds: 1 for a quorum, 5 of rounds, 3 for the sum, 1 to commit."""
    for doing, begun_s in ((Doing.QUORUM, 0), (Doing.COMPUTE, 1), (Doing.REDUCE, 6), (Doing.COMMIT, 9)):
        meter.enter(doing, at_s + begun_s)
    meter.end_attempt(fate, at_s + 10)


def spent(meter: Meter, now_s: float) -> dict[str, float]:
    return {str(cause): seconds for cause, seconds in meter.seconds_by_cause(now_s).items() if seconds}


def test_a_life_is_accounted_for_second_by_second() -> None:
    meter = Meter(100.0)
    assert spent(meter, 104.0) == {"restarting": 4.0}
    attempt(meter, 110.0, Fate.COMMITTED)
    assert spent(meter, 120.0) == {"restarting": 10.0, "quorum": 1.0, "productive": 6.0, "reduce": 3.0}
    meter.enter(Doing.SAVE, 122.0)
    assert spent(meter, 122.5)["save"] == 0.5
    assert spent(meter, 122.5)["productive"] == 8.0  # the script's own 2 s


def test_work_counts_once_it_is_known_what_came_of_it() -> None:
    meter = Meter(0.0, Doing.QUORUM)
    meter.enter(Doing.COMPUTE, 1.0)
    meter.enter(Doing.REDUCE, 5.0)
    assert spent(meter, 9.0) == {"quorum": 1.0}
    meter.end_attempt(Fate.LOST, 10.0)
    assert spent(meter, 10.0) == {"quorum": 1.0, "ended_attempt": 9.0}


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (Fate.COMMITTED, "productive"), (Fate.SPARE, "productive"),
        (Fate.JOINED, "ended_attempt"), (Fate.LOST, "ended_attempt"),
    ],
)  # fmt: skip
def test_kept_rounds_wait_for_the_commit_that_they_are_in(end: Fate, cause: str) -> None:
    meter = Meter(0.0, Doing.QUORUM)
    attempt(meter, 0.0, Fate.KEPT)
    attempt(meter, 10.0, Fate.KEPT)
    assert spent(meter, 20.0) == {"quorum": 2.0, "ended_attempt": 8.0}
    before = Meter(0.0, Doing.QUORUM)
    attempt(before, 0.0, end)
    attempt(meter, 20.0, end)
    gained = spent(meter, 30.0).get(cause, 0.0) - spent(before, 10.0).get(cause, 0.0)
    assert gained == 10.0 + (8.0 if cause == "ended_attempt" else 0.0)


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 100), st.sampled_from([*Doing, *(set(Fate) - {Fate.TAKEN_BACK})])), max_size=40
    )
)
def test_no_second_is_counted_twice_or_taken_back(steps: list[tuple[float, Doing | Fate]]) -> None:
    meter = Meter(0.0)
    now_s = 0.0
    seen = [meter.seconds_by_cause(now_s)]
    for wait_s, what in steps:
        now_s += wait_s
        seen.append(meter.seconds_by_cause(now_s))
        if isinstance(what, Doing):
            meter.enter(what, now_s)
        else:
            meter.end_attempt(what, now_s)
        seen.append(meter.seconds_by_cause(now_s))
        assert sum(seen[-1].values()) <= now_s + 1e-6
    for one, other in pairwise(seen):
        assert all(other[cause] >= one[cause] - 1e-9 for cause in Cause)
    meter.end_attempt(Fate.COMMITTED, now_s)
    assert sum(meter.seconds_by_cause(now_s).values()) == pytest.approx(now_s)
