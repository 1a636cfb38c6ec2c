"""A group's last save: who makes it, who waits, and what follows when it does not come."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lighthouse.client import Phase
from replica import saves as module
from replica.backstop import Boundary
from replica.config import BackstopConfig
from replica.saves import LastSave, Saves

STEPS = 9


class FakeBackstop:
    """Keeps what it is asked; `saved` says from which look on the last step is there."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.vault = None
        self.finished: list[tuple[Boundary | None, float]] = []
        self.failure: str | None = None
        self.saved_at_look: int | None = 1
        self.looks = 0
        self.knows = True
        self.is_alone = True
        self.is_fenced = False
        self.settled: list[float] = []
        self.boundary: Boundary | None = None

    def finish(self, boundary: Boundary | None = None, *, limit_s: float) -> str | None:
        self.finished.append((boundary, limit_s))
        return self.failure

    def settle(self, *, limit_s: float) -> bool:
        self.settled.append(limit_s)
        return False

    def is_saved(self, step: int) -> bool:
        self.looks += 1
        return self.saved_at_look is not None and self.looks >= self.saved_at_look

    def knows_of_saves(self) -> bool:
        return self.knows

    def moved(self, boundary: Boundary | None) -> None:
        self.boundary = boundary


@pytest.fixture
def backstop(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeBackstop]]:
    monkeypatch.setattr(module, "Backstop", FakeBackstop)
    monkeypatch.setattr(module, "POLL_S", 0.0)
    return FakeBackstop


class Group:
    """Group 1 of a job, with the last step."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(job="job", group=1, steps=STEPS)
        self.record = SimpleNamespace(incarnation="00000001")
        self.ranks = SimpleNamespace(share=lambda values: [tuple(values)])
        self.state = None
        self.rank = 0
        self.bridge = SimpleNamespace(quorum_id=5)
        self.step = STEPS
        self.last_digest = "d"
        self.over: str | None = None
        self.notices = SimpleNamespace(over=lambda quorum_id: self.over)
        self.phases: list[Phase] = []
        self.abandoned: list[tuple[int, str]] = []
        self.stream = SimpleNamespace(
            progress=lambda step, phase: self.phases.append(phase),
            abandon=lambda *told: self.abandoned.append(told),
        )


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def saves(group: Group, backstop: type[FakeBackstop]) -> Any:
    config = BackstopConfig(url="/saves", every_steps=5, timeout_s=100.0, grace_s=7.0)
    return Saves(group, config)  # type: ignore[arg-type]


def test_the_lowest_member_makes_the_last_save(saves: Any, group: Group) -> None:
    assert saves.at_the_end(4, [2, 1]) is LastSave.DURABLE
    [(boundary, limit_s)] = saves._backstop.finished
    assert boundary == Boundary(step=STEPS, quorum_id=4, owners=frozenset({1, 2}), digest="d")
    assert limit_s == 100.0
    assert group.phases == [Phase.SAVE]
    assert (saves.failure, saves.last) == (None, LastSave.DURABLE)


def test_one_that_cannot_make_it_gives_the_attempt_up_so_that_another_tries(saves: Any, group: Group) -> None:
    saves._backstop.failure = "disk full"
    assert saves.at_the_end(4, [1, 2]) is LastSave.IN_VAIN
    assert group.abandoned == [(4, "disk full")]
    assert (saves.failure, saves.last) == ("disk full", LastSave.IN_VAIN)


def test_the_others_wait_until_it_is_there_without_holding_anybody_up(saves: Any, group: Group) -> None:
    saves._backstop.saved_at_look = 4
    assert saves.at_the_end(4, [0, 1]) is LastSave.DURABLE
    assert saves._backstop.looks == 4
    assert saves._backstop.finished == []
    assert group.phases == [Phase.SAVE]


def test_when_the_writer_is_lost_another_quorum_is_asked_for(saves: Any, group: Group) -> None:
    saves._backstop.saved_at_look = None
    group.over = "group 0 died"
    assert saves.at_the_end(4, [0, 1]) is LastSave.ATTEMPT_OVER
    assert saves.failure is None


def test_a_writer_that_never_ends_is_not_waited_for_for_ever(
    saves: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves._backstop.saved_at_look = None
    now_s = iter(range(0, 10_000, 50))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(now_s)))
    assert saves.at_the_end(4, [0, 1]) is LastSave.IN_VAIN
    assert "was not saved" in saves.failure


def test_one_that_has_just_healed_leaves_it_to_the_others_to_tell(saves: Any) -> None:
    saves._backstop.knows = False
    saves._backstop.saved_at_look = None
    assert saves.at_the_end(4, [0, 1]) is LastSave.UNKNOWN
    assert saves.last is LastSave.UNKNOWN


def test_alone_it_saves_its_newest_step_within_the_grace(saves: Any) -> None:
    saves.before_leaving()
    assert saves._backstop.finished == [(None, 7.0)]


def test_the_last_one_saves_what_another_would_have_written(saves: Any) -> None:
    saves._backstop.is_alone = False
    saves._backstop.failure = "disk full"
    saves.before_leaving()
    own = Boundary(step=STEPS, quorum_id=5, owners=frozenset({1}), digest="d")
    assert saves._backstop.finished == [(own, 7.0)]
    assert saves.failure == "disk full"


def test_others_that_went_on_are_told_by_what_they_saved(saves: Any) -> None:
    assert not saves.is_fenced
    saves._backstop.is_fenced = True
    assert saves.is_fenced


def test_what_is_in_flight_has_the_grace_and_is_no_failure(saves: Any) -> None:
    saves.settle()
    assert saves._backstop.settled == [7.0]
    assert (saves.failure, saves._backstop.finished) == (None, [])


def test_where_the_state_came_from_is_kept(saves: Any) -> None:
    saves.moved(6)
    assert saves._backstop.boundary == Boundary(step=STEPS, quorum_id=6, owners=frozenset({1}), digest="d")
    saves.moved()
    assert saves._backstop.boundary is None
