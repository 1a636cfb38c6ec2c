"""What happens to a group that has ended: each verdict, and the counting of failures."""

from hypothesis import given
from hypothesis import strategies as st

from train.cluster.supervision import MAX_FAILURES, MAX_FAILURES_AT_FIRST, Ending, Verdict, after_ending


def ending(exit_code: int, **changes: object) -> Ending:
    values: dict[str, object] = {
        "killed": False, "committed": False, "failures": 0, "restart": True, "job_over": False,
    }  # fmt: skip
    return Ending(exit_code=exit_code, **{**values, **changes})  # type: ignore[arg-type]


def test_exit_codes_decide() -> None:
    verdicts = {code: after_ending(ending(code)).verdict for code in (0, 3, 4, -9, -15, 1)}
    assert verdicts == {
        0: Verdict.FINISHED,
        3: Verdict.RESTART,
        4: Verdict.REFUSED,
        -9: Verdict.RESTART,
        -15: Verdict.RESTART,
        1: Verdict.RESTART,
    }


def test_what_never_worked_is_given_up_sooner() -> None:
    early, last = (
        after_ending(ending(3, failures=MAX_FAILURES_AT_FIRST - less, job_begun=False)) for less in (2, 1)
    )
    assert (early.verdict, last.verdict) == (Verdict.RESTART, Verdict.FAILING)
    assert after_ending(ending(3, failures=MAX_FAILURES_AT_FIRST)).verdict is Verdict.RESTART


def test_a_group_that_may_not_come_back_stays_down() -> None:
    assert after_ending(ending(-9, restart=False)).verdict is Verdict.LEAVE
    assert after_ending(ending(3, job_over=True)).verdict is Verdict.LEAVE


def test_five_failures_in_a_row_are_too_many() -> None:
    failures, verdicts = 0, []
    for _ in range(MAX_FAILURES):
        decision = after_ending(ending(3, failures=failures))
        failures = decision.failures
        verdicts.append(decision.verdict)
    assert verdicts == [Verdict.RESTART] * (MAX_FAILURES - 1) + [Verdict.FAILING]


def test_a_failing_group_is_told_of_even_if_none_is_restarted() -> None:
    assert after_ending(ending(3, failures=MAX_FAILURES - 1, restart=False)).verdict is Verdict.FAILING


def test_a_commit_ends_the_row_and_an_ordered_kill_does_not_count() -> None:
    assert after_ending(ending(3, committed=True, failures=4)).failures == 0
    assert after_ending(ending(-9, killed=True, failures=3)).failures == 3


@given(st.integers(0, MAX_FAILURES - 2), st.integers(-64, 255).filter(lambda code: code not in (0, 4)))
def test_waits_grow_with_failures_and_are_bounded(failures: int, code: int) -> None:
    first, second = (after_ending(ending(code, failures=failures + more)) for more in (-1, 0))
    assert 0 <= first.backoff_s <= second.backoff_s <= 10


def test_the_first_kill_costs_no_extra_wait() -> None:
    assert after_ending(ending(-9, killed=True)).backoff_s == 0
