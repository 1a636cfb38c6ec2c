"""How a group begins, from what the Lighthouse says when it attaches."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from lighthouse.client import (
    OPEN,
    Access,
    ColdStart,
    LockedOutError,
    RefusedError,
    SavesFound,
    StartMode,
    UnreachableError,
    Welcome,
)
from replica import streams
from replica.config import BackstopConfig, GroupConfig
from replica.errors import RestartError, UserError
from replica.notices import Notices
from replica.streams import LighthouseStream, StartCheck, act_on


class Attach:
    """Stands in for the stream: says how to start."""

    mode: StartMode | None = StartMode.FRESH
    said: ClassVar[list[tuple[bool, int, float]]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def open(self, timeout_s: float) -> Welcome | None:
        return None if self.mode is None else Welcome(start_mode=self.mode, step=0)

    def goodbye(self, finished: bool, step: int, *, may_save_s: float) -> bool:
        self.said.append((finished, step, may_save_s))
        return True


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Attach]]:
    monkeypatch.setattr(streams, "AttachStream", Attach)
    yield Attach
    Attach.mode = StartMode.FRESH


def stream(*, saves: bool = False, access: Access = OPEN) -> LighthouseStream:
    backstop = BackstopConfig(url="/saves", every_steps=1) if saves else None
    config = GroupConfig(job="j", group=1, lighthouse="h:1", steps=9, micro_batches=4, backstop=backstop)
    return LighthouseStream(config, 0, Notices(end_process=False), access)


@pytest.mark.parametrize(
    ("mode", "saves", "check"),
    [
        (None, True, StartCheck.GO_ON),
        (StartMode.FRESH, False, StartCheck.GO_ON),
        # The Lighthouse may have lost its record, and the saves be there.
        (StartMode.FRESH, True, StartCheck.COLD),
        (StartMode.HEAL, False, StartCheck.COLD),
        (StartMode.RESTORE, False, StartCheck.COLD),
        (StartMode.RESTORE, True, StartCheck.COLD),
        (StartMode.FINISHED, True, StartCheck.FINISHED),
    ],
)
def test_how_to_begin(attach: type[Attach], mode: StartMode | None, saves: bool, check: StartCheck) -> None:
    attach.mode = mode
    made = stream(saves=saves)
    assert made.attach("j/1:u", 1, "f", "p") is check
    assert made.tells_deaths == (mode is not None)
    assert made.must_heal == (mode is StartMode.HEAL)


@pytest.mark.parametrize(
    ("token", "demanded", "warned"),
    [(b"a token", False, True), (b"a token", True, False), (b"", False, False), (b"a token", None, False)],
)
def test_a_token_that_guards_nothing_is_warned_of(
    attach: type[Attach],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    token: bytes,
    demanded: bool | None,
    warned: bool,
) -> None:
    def demands(address: str, access: Access) -> bool:
        if demanded is None:
            raise UnreachableError("nobody answers")
        return demanded

    monkeypatch.setattr(streams, "demands_token", demands)
    with caplog.at_level(logging.WARNING, logger="headway"):
        stream(access=Access(token=token)).attach("j/1:u", 1, "f", "p")
    said = [record.getMessage() for record in caplog.records]
    assert [line.startswith("group 1: the Lighthouse at h:1 demands no token: ") for line in said] == [
        True
    ] * warned


def test_the_newest_save_is_proposed_and_no_answer_is_one_to_wait_for(
    attach: type[Attach], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def propose(address: str, replica_id: str, found: Any, **words: Any) -> Any:
        asked.append((address, replica_id, found))
        raise UnreachableError("nobody answers")

    monkeypatch.setattr(streams, "propose_save", propose)
    made = stream()
    made.attach("j/1:u", 1, "f", "p")
    found = SavesFound(highest_quorum_id=2)
    answer = made.propose(found)
    assert (answer.verdict, answer.cause) == (ColdStart.WAIT, "nobody answers")
    assert asked == [("h:1", "j/1:u", found)]


def test_a_lighthouse_that_does_not_answer_has_no_status(
    attach: type[Attach], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(address: str, timeout_s: float, **words: Any) -> Any:
        raise UnreachableError("nobody answers")

    monkeypatch.setattr(streams, "status", lambda address, timeout_s, **words: {"of": address})
    assert stream().status() == {"of": "h:1"}
    monkeypatch.setattr(streams, "status", nobody)
    assert stream().status() is None


def test_that_the_last_save_is_there_is_told_where_somebody_listens(
    attach: type[Attach], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []

    def nobody(*words: Any, **more: Any) -> bool:
        raise UnreachableError("nobody answers")

    monkeypatch.setattr(
        streams, "leave", lambda address, replica_id, timeout_s, **more: told.append((address, replica_id))
    )
    attach.mode = StartMode.RESTORE
    made = stream()
    made.left()  # it never attached
    assert told == []
    made.attach("j/1:u", 1, "f", "p")
    made.goodbye(finished=False, step=4, may_save_s=20.0)
    assert attach.said.pop() == (False, 4, 20.0)
    made.left()
    assert told == [("h:1", "j/1:u")]
    attach.mode = None  # torchft's own lighthouse
    alone = stream()
    alone.attach("j/1:u", 1, "f", "p")
    alone.left()
    assert len(told) == 1
    monkeypatch.setattr(streams, "leave", nobody)
    made.left()


def test_an_incarnation_that_is_not_wanted_ends(
    attach: type[Attach], monkeypatch: pytest.MonkeyPatch
) -> None:
    def propose(*args: Any, **words: Any) -> Any:
        raise RefusedError("superseded")

    monkeypatch.setattr(streams, "propose_save", propose)
    made = stream()
    made.attach("j/1:u", 1, "f", "p")
    with pytest.raises(RestartError, match="superseded"):
        made.propose(None)


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (LockedOutError("another token"), UserError),
        (RefusedError("evicted"), RestartError),
        (UnreachableError("nobody answers"), RestartError),
    ],
)
def test_a_rank_that_is_locked_out_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception, error: type[Exception]
) -> None:
    class Watch(Attach):
        def open(self, timeout_s: float) -> Welcome | None:
            raise refusal

    monkeypatch.setattr(streams, "WatchStream", Watch)
    with pytest.raises(error, match=str(refusal)):
        stream().watch("j/1:u", 2, "f", "p")


def test_the_port_for_tls_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(address: str, wait_s: float, on_wait: Callable[[float], None]) -> None:
        on_wait(1.0)
        raise UnreachableError("nobody answers")

    monkeypatch.setattr(streams, "wait_until_reachable", wait)
    monkeypatch.setattr(streams, "wrong_port", lambda address: None)
    with pytest.raises(RestartError, match="nobody answers"):
        stream().wait_until_reachable()
    monkeypatch.setattr(streams, "wrong_port", lambda address: f"TLS is spoken at {address}")
    with pytest.raises(UserError, match="TLS is spoken at h:1"):
        stream().wait_until_reachable()


def test_going_on_and_finished_are_told_apart() -> None:
    assert act_on(StartCheck.GO_ON, "tiny") is False
    assert act_on(StartCheck.FINISHED, "tiny") is True


def test_a_lost_job_needs_its_owner() -> None:
    with pytest.raises(UserError, match="forget ADDR tiny"):
        act_on(StartCheck.JOB_LOST, "tiny")
