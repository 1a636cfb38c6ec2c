"""What people are told while a group gets no quorum: what the Lighthouse waits for, and not too often."""

import threading
from typing import Any

import pytest

from replica import quorum_wait
from replica.quorum_wait import EVERY_S, QuorumWait


class Wait:
    """Time is handed in; `document` is the status that the Lighthouse gives."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.document: dict[str, Any] | None = {
            "jobs": [{"job": "job", "forming": {"why": "group 2 does not ask"}}]
        }
        self.asked = 0
        self.said: list[str] = []
        self.wait = QuorumWait(self.ask, job="job", say=self.said.append, clock=lambda: self.now_s)

    def ask(self) -> dict[str, Any] | None:
        self.asked += 1
        return self.document

    def look_after(self, seconds: float) -> None:
        self.now_s += seconds
        self.wait.look()


@pytest.fixture
def wait() -> Wait:
    return Wait()


def test_a_long_wait_is_explained_now_and_then(wait: Wait) -> None:
    with wait.wait.waiting():
        wait.look_after(EVERY_S - 1)
        assert (wait.said, wait.asked) == ([], 0)
        wait.look_after(1)
        wait.look_after(EVERY_S - 1)
        wait.look_after(1)
    assert wait.said == [
        f"no quorum for {n * EVERY_S:.0f} s: the Lighthouse says: group 2 does not ask" for n in (1, 2)
    ]


def test_short_waits_in_a_row_are_no_long_one(wait: Wait) -> None:
    for _ in range(9):
        with wait.wait.waiting():
            wait.look_after(EVERY_S - 1)
        wait.look_after(EVERY_S + 1)
    assert wait.asked == 0


def test_a_lighthouse_that_cannot_say_why_is_named(wait: Wait) -> None:
    with wait.wait.waiting():
        wait.document = None
        wait.look_after(EVERY_S)
        wait.document = {"jobs": []}
        wait.look_after(EVERY_S)
    assert [text.partition(": ")[2] for text in wait.said] == [
        "the Lighthouse does not answer",
        "the Lighthouse does not know this job",
    ]


def test_what_is_over_when_the_answer_comes_is_not_told(wait: Wait) -> None:
    with wait.wait.waiting():
        wait.wait._ask = lambda: setattr(wait.wait, "_since_s", None)  # type: ignore[assignment]
        wait.look_after(EVERY_S)
    assert wait.said == []


def test_its_thread_looks_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()
    monkeypatch.setattr(quorum_wait, "LOOK_S", 0.01)
    monkeypatch.setattr(quorum_wait, "EVERY_S", 0.0)
    wait = QuorumWait(lambda: None, job="job", say=lambda text: said.set())
    wait.start()
    with wait.waiting():
        assert said.wait(30)
    wait.close()
    wait._thread.join(30)
    assert not wait._thread.is_alive()
