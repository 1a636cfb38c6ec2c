"""The account of a job's time: over several lives of a group, and whatever clients say."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.accounts import MAX_CAUSES, START_S, Accounts, goodput_ratio
from lighthouse.model import ReplicaId, parse_replica_id
from replica.goodput import Doing, Fate, Meter

NOW_S = 50.0


def told(*reports: tuple[str, dict[str, float], float], max_groups: int = 8) -> Accounts:
    accounts = Accounts(max_groups=max_groups)
    for name, seconds, now_s in reports:
        accounts.report(parse_replica_id(f"job/{name}"), seconds, now_s)
    return accounts


def test_the_latest_report_of_a_life_counts() -> None:
    accounts = told(("0:a", {"productive": 1.0}, 10.0), ("0:a", {"productive": 3.0, "reduce": 1.0}, 13.0))
    assert accounts.by_group(NOW_S) == {0: {"productive": 3.0, "reduce": 1.0}}
    assert goodput_ratio(accounts.total(NOW_S)) == 0.75


def test_a_later_life_is_added_and_the_time_between_was_spent_dead() -> None:
    accounts = told(("0:a", {"productive": 8.0}, 10.0), ("0:b", {"restarting": 3.0, "quorum": 1.0}, 20.0))
    assert accounts.of(0, NOW_S) == {
        "productive": 8.0,
        "restarting": 3.0,
        "quorum": 1.0,
        "detection": 6.0,
        "ended_attempt": 0.0,
    }


def test_a_life_that_began_before_the_last_report_of_the_earlier_one_leaves_no_gap() -> None:
    accounts = told(("0:a", {"productive": 8.0}, 10.0), ("0:b", {"restarting": 5.0}, 12.0))
    assert accounts.of(0, NOW_S) == {
        "productive": 8.0,
        "restarting": 5.0,
        "detection": 0.0,
        "ended_attempt": 0.0,
    }


def test_a_group_that_left_was_away_and_not_dead() -> None:
    accounts = told(("0:a", {"productive": 8.0}, 10.0))
    accounts.end(parse_replica_id("job/0:z"), 10.0, left=True)  # an earlier life of it
    accounts.end(parse_replica_id("job/0:a"), 10.0, left=True)
    accounts.report(parse_replica_id("job/0:b"), {"restarting": 2.0}, 30.0)
    accounts.report(parse_replica_id("job/0:c"), {"restarting": 2.0}, 40.0)
    assert accounts.of(0, NOW_S) == {
        "productive": 8.0,
        "restarting": 4.0,
        "not_provisioned": 18.0,
        "detection": 8.0,
        "ended_attempt": 0.0,
    }


def test_groups_are_kept_apart_and_added_up() -> None:
    accounts = told(("2:a", {"productive": 1.0}, 5.0), ("10:a", {"productive": 2.0, "spare": 3.0}, 5.0))
    assert list(accounts.by_group(NOW_S)) == [2, 10]
    assert accounts.total(NOW_S) == {"productive": 3.0, "spare": 3.0}
    assert accounts.of(7, NOW_S) == {}
    assert accounts.of("a torchft replica", NOW_S) == {}


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf, 1e12])
def test_numbers_that_cannot_be_are_passed_over(value: float) -> None:
    accounts = told(("0:a", {"productive": 1.0, "save": value}, 5.0), ("1:a", {"save": value}, 5.0))
    assert accounts.by_group(NOW_S) == {0: {"productive": 1.0}}


@pytest.mark.parametrize("cause", ["", "Productive", "a b", 'x"} 1', "a" * 33, "1st", "ü"])
def test_names_that_cannot_be_are_passed_over(cause: str) -> None:
    assert told(("0:a", {cause: 1.0, "save": 2.0}, 5.0)).of(0, NOW_S) == {"save": 2.0}


def test_what_falls_does_not() -> None:
    accounts = told(("0:a", {"productive": 5.0}, 10.0), ("0:a", {"productive": 2.0, "save": 1.0}, 11.0))
    assert accounts.of(0, NOW_S) == {"productive": 5.0, "save": 1.0}


def test_no_time_has_no_ratio() -> None:
    assert goodput_ratio({}) is None
    assert goodput_ratio({"productive": 0.0}) is None
    assert goodput_ratio({"reduce": 2.0}) == 0.0


def test_memory_is_bounded_whatever_is_invented() -> None:
    accounts = Accounts(max_groups=4)
    for life in range(100):
        causes = {f"c_{'abcdefghij'[digit]}{'abcdefghij'[life % 10]}": 1.0 for digit in range(10)}
        extra = {f"x{chr(97 + n % 26)}{chr(97 + life % 26)}{chr(97 + n // 26)}": 1.0 for n in range(60)}
        accounts.report(parse_replica_id(f"job/{life % 10}:{life}"), causes | extra, float(life))
    assert len(accounts.by_group(NOW_S)) == 4
    assert all(len(seconds) <= 2 * MAX_CAUSES for seconds in accounts.by_group(NOW_S).values())
    assert len(accounts.total(NOW_S)) <= MAX_CAUSES


class Job:
    """One group as its processes see it, by the meter that they use, and the account that is kept of it.

    A step computes for 29 s and reduces for 1 s; a start takes 6 s.
    """

    def __init__(self, server_started_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.accounts = Accounts(max_groups=8, since_s=server_started_s)
        self.sums: list[float] = []
        self._life = 0

    @property
    def seconds(self) -> dict[str, float]:
        return self.accounts.of(0, self.now_s)

    def live(self, for_s: int) -> None:
        """A new life, which tells what it has done every second, and is then killed."""
        self._life += 1
        self.last = Meter(self.now_s)
        for second in range(for_s):
            self._tick()
            if second < 6:
                continue
            into_step = (second - 6) % 30
            if into_step == 0 and second > 6:
                self.last.end_attempt(Fate.COMMITTED, self.now_s)
            if into_step in (0, 29):
                self.last.enter(Doing.REDUCE if into_step else Doing.COMPUTE, self.now_s)
            self.tell()
        self.accounts.end(self.id, self.now_s, left=False)

    @property
    def id(self) -> ReplicaId:
        return parse_replica_id(f"job/0:{self._life}")

    def tell(self) -> None:
        causes = self.last.seconds_by_cause(self.now_s)
        self.accounts.report(self.id, {str(cause): value for cause, value in causes.items()}, self.now_s)

    def wait(self, for_s: int) -> None:
        """Nobody is there."""
        ticks = min(for_s, 300)
        for _ in range(ticks):
            self._tick(for_s / ticks)

    def _tick(self, length_s: float = 1.0) -> None:
        before = self.seconds
        self.now_s += length_s
        after = self.seconds
        assert all(after[cause] >= value - 1e-6 for cause, value in before.items())
        self.sums.append(sum(after.values()))


def test_with_a_kill_each_minute_the_causes_add_up_to_the_clock() -> None:
    job = Job()
    for _ in range(60):
        job.live(54)
        job.wait(6)
    job.live(10)
    assert sum(job.seconds.values()) == pytest.approx(job.now_s, rel=0.01)
    assert job.seconds["productive"] == pytest.approx(60 * 29, rel=0.01)
    assert job.seconds["restarting"] == pytest.approx(61 * 7, rel=0.15)
    assert job.seconds["ended_attempt"] == pytest.approx(60 * 17, rel=0.1)
    assert job.seconds["detection"] == pytest.approx(60 * 6, rel=0.2)


def test_one_that_never_comes_back_is_dead_all_the_time() -> None:
    job = Job()
    job.live(606)
    job.wait(36_000)
    assert job.seconds["detection"] == pytest.approx(36_000 - START_S)
    assert goodput_ratio(job.seconds) == pytest.approx(19 * 29 / 36_457, rel=0.01)


@pytest.mark.parametrize("away_s", [30, 130, 36_000])
def test_one_that_comes_back_late_makes_no_jump_and_no_time_is_counted_twice(away_s: int) -> None:
    job = Job()
    job.live(306)
    job.wait(away_s)
    job.live(306)
    assert sum(job.seconds.values()) == pytest.approx(job.now_s, abs=31.0)
    steps = [after - before for before, after in itertools.pairwise(job.sums)]
    assert max(steps) <= START_S + 31.0
    assert job.seconds["restarting"] + job.seconds["detection"] == pytest.approx(away_s + 14, abs=3.0)


def test_the_end_of_the_job_stops_the_clock() -> None:
    job = Job()
    job.live(306)
    job.accounts.finish(job.now_s)
    before = job.seconds
    job.wait(1000)
    assert job.seconds == before


def test_a_server_that_starts_later_counts_from_then_on() -> None:
    early = Job(server_started_s=500.0)
    early.live(499)
    early.accounts = Accounts(max_groups=8, since_s=500.0)
    early.now_s = 501.0
    early.tell()
    assert sum(early.seconds.values()) == 0.0
    early.last.end_attempt(Fate.COMMITTED, 511.0)
    early.now_s = 512.0
    early.tell()
    assert 0.0 < sum(early.seconds.values()) <= 512.0 - 500.0 + 30.0


def test_invented_names_do_not_put_out_the_productive_time() -> None:
    invented = {f"a{chr(97 + n // 26)}{chr(97 + n % 26)}": 1.0 for n in range(2 * MAX_CAUSES)}
    assert told(("0:a", {**invented, "productive": 7.0}, 10.0)).of(0, NOW_S)["productive"] == 7.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.dictionaries(st.sampled_from(["productive", "reduce", "save"]), st.floats(0, 100)),
            st.floats(0, 50),
        ),
        max_size=20,
    )
)
def test_no_cause_ever_falls(reports: list[tuple[str, dict[str, float], float]]) -> None:
    accounts, now_s = Accounts(max_groups=8), 0.0
    before: dict[str, float] = {}
    for life, seconds, later_s in reports:
        now_s += later_s
        accounts.report(parse_replica_id(f"job/0:{life}"), seconds, now_s)
        after = accounts.of(0, NOW_S)
        assert all(after[cause] >= value - 1e-9 for cause, value in before.items())
        before = after


def test_one_that_was_only_cut_off_makes_no_cause_fall_and_counts_once() -> None:
    account = told(("0:a", {"productive": 10.0, "quorum": 1.0}, 11.0))
    id = parse_replica_id("job/0:a")
    account.end(id, 12.0, left=False)
    before = account.of(0, 192.0)
    assert before == {"productive": 10.0, "quorum": 1.0, "detection": 60.0}
    account.report(id, {"productive": 10.0, "quorum": 182.0}, 192.0)
    after = account.of(0, 192.0)
    assert after == {"productive": 10.0, "quorum": 122.0, "detection": 60.0}
    account.report(id, {"productive": 11.0, "quorum": 183.0}, 194.0)
    assert account.of(0, 194.0) == {"productive": 11.0, "quorum": 123.0, "detection": 60.0}
