"""Work that hangs is left behind at the deadline; all other work comes back as it is."""

import threading

import pytest

from replica.backstop.deadline import Deadline, TooLateError


def test_results_and_errors_come_back() -> None:
    deadline = Deadline(60)
    assert deadline.run(lambda: 3) == 3
    assert deadline.run(lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        deadline.run(lambda: 1 // 0)
    assert not deadline.passed


def test_what_hangs_is_left_behind() -> None:
    never = threading.Event()
    deadline = Deadline(0.05)
    with pytest.raises(TooLateError, match=r"^it was not done within 0.05 s: is the store reachable"):
        deadline.run(never.wait)
    assert deadline.passed
    (left,) = [thread for thread in threading.enumerate() if thread.name == "backstop-io"]
    assert left.daemon
    never.set()
    left.join()


def test_all_work_shares_one_deadline() -> None:
    now = [100.0]
    deadline = Deadline(10, clock=lambda: now[0])
    assert deadline.run(lambda: 1) == 1
    now[0] = 110.0
    assert deadline.passed
    with pytest.raises(TooLateError):
        deadline.run(threading.Event().wait)
