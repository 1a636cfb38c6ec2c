"""Notices: what ends an attempt, what ends this incarnation, and who is woken."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue

import pytest

from lighthouse.client import Notice, NoticeKind
from replica.errors import RestartError, UserError
from replica.notices import Notices, drain_on_sigterm


def heard(*notices: Notice) -> Notices:
    made = Notices(end_process=False)
    for notice in notices:
        made.hear(notice)
    return made


def over(quorum_id: int, cause: str = "group 1 died") -> Notice:
    return Notice(kind=NoticeKind.ATTEMPT_OVER, quorum_id=quorum_id, cause=cause)


def test_an_attempt_is_over_with_its_quorum_and_with_every_later_one() -> None:
    notices = heard(over(7))
    assert notices.over(6) == notices.over(7) == "group 1 died"
    assert notices.over(8) is None
    assert heard(over(7), over(5, "older")).over(7) == "group 1 died"
    assert heard().over(0) is None


@pytest.mark.parametrize(
    ("kind", "error"), [(NoticeKind.EVICTED, RestartError), (NoticeKind.SUPERSEDED, UserError)]
)
def test_an_incarnation_that_is_counted_out_ends(kind: NoticeKind, error: type[Exception]) -> None:
    notices = heard(Notice(kind=kind, cause="rank 1 is frozen"))
    with pytest.raises(error, match="rank 1 is frozen"):
        notices.raise_if_ended()
    assert notices.over(10**9) == "rank 1 is frozen"
    heard(over(3)).raise_if_ended()


def test_a_drain_is_asked_for_by_notice_and_by_signal() -> None:
    assert not heard(over(3)).draining
    assert heard(Notice(kind=NoticeKind.DRAIN)).draining
    before = signal.getsignal(signal.SIGTERM)
    try:
        notices = heard()
        drain_on_sigterm(notices)
        os.kill(os.getpid(), signal.SIGTERM)
        assert notices.draining
        # The second one is for those who cannot wait.
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_whoever_waits_is_woken() -> None:
    notices, event = heard(), threading.Event()
    with notices.waking(event):
        notices.hear(over(1))
        assert event.is_set()
    event.clear()
    notices.hear(over(2))
    assert not event.is_set()


def test_a_stuck_process_is_ended_with_the_exit_code_of_the_notice_and_says_why(tmp_path: Path) -> None:
    code = """
import threading
from lighthouse.client import Notice, NoticeKind
from replica import notices
notices.GRACE_S = 0.1
notices.Notices().hear(Notice(kind=NoticeKind.EVICTED, cause="frozen"))
threading.Event().wait(60)
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=50, check=False, stderr=subprocess.PIPE)
    assert ended.returncode == 3
    assert b"the Lighthouse counted this group out: frozen" in ended.stderr


@pytest.mark.parametrize("kind", [NoticeKind.EVICTED, NoticeKind.SUPERSEDED])
def test_one_that_leaves_is_not_ended_over_its_last_save(
    kind: NoticeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[object] = []
    monkeypatch.setattr("replica.notices.threading.Timer", lambda *args, **more: timers.append(args))
    notices = Notices()
    notices.leave()
    notices.hear(Notice(kind=kind, cause="a newer incarnation of group 1 is here"))
    assert timers == []


def test_who_waits_for_a_quorum_of_a_finished_job_ends_with_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replica.notices.GRACE_S", 0.01)
    codes: Queue[int] = Queue()
    monkeypatch.setattr("replica.notices.os._exit", codes.put)
    notices = Notices()
    finished = Notice(kind=NoticeKind.FINISHED)
    with notices.asking():
        notices.hear(finished)
        assert codes.get(timeout=10) == 0
    with notices.asking():
        assert codes.get(timeout=10) == 0, "it had been told before it asked"


def test_who_does_not_wait_is_left_alone_when_the_job_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[object] = []
    monkeypatch.setattr("replica.notices.threading.Timer", lambda *args, **more: timers.append(args))
    notices = Notices()
    notices.hear(Notice(kind=NoticeKind.FINISHED))
    assert timers == []
    assert notices.over(7) is None


def test_a_stuck_process_is_ended_although_nobody_reads_what_it_says(tmp_path: Path) -> None:
    code = """
import logging, threading
from lighthouse.client import Notice, NoticeKind
from replica import notices
notices.GRACE_S, notices.SAY_S = 0.1, 0.1
stuck = logging.StreamHandler()
logging.getLogger("headway").addHandler(stuck)
stuck.acquire()
notices.Notices().hear(Notice(kind=NoticeKind.EVICTED, cause="frozen"))
threading.Event().wait(60)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 3
