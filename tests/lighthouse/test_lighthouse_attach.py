"""The client's end of the stream: welcome, progress, goodbye, breaks, and what it never blocks."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from threaded import Threaded, threaded

from lighthouse import attach, lifeline
from lighthouse import jobs as jobs_module
from lighthouse.app import Lighthouse
from lighthouse.client import (
    AttachStream,
    Hello,
    Notice,
    NoticeKind,
    Phase,
    RefusedError,
    RoundTimes,
    StartMode,
    UnreachableError,
    WatchStream,
    Welcome,
)
from lighthouse.model import Member, Refusal, parse_replica_id
from lighthouse.saves import Saves
from lighthouse.slot import Gone, Slot
from protos import torchft_pb2


def hello(group: int = 0, incarnation: str = "a", step: int = 0, rank: int = 0) -> Hello:
    return Hello(
        job="job",
        group=group,
        replica_id=f"job/{group}:{incarnation}",
        group_world_size=2,
        step=step,
        group_rank=rank,
    )


class Heard:
    """Notices as they come; `wait` blocks until there are so many."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._changed = threading.Condition()

    def __call__(self, notice: Notice) -> None:
        with self._changed:
            self.notices.append(notice)
            self._changed.notify_all()

    def wait(self, count: int = 1) -> list[Notice]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.notices) >= count, 10), self.notices
            return list(self.notices)

    def wait_for(self, kind: NoticeKind) -> Notice:
        with self._changed:
            assert self._changed.wait_for(lambda: self._find(kind) is not None, 10), self.notices
            found = self._find(kind)
            assert found is not None
            return found

    def _find(self, kind: NoticeKind) -> Notice | None:
        return next((notice for notice in self.notices if notice.kind is kind), None)


def make_quorum(server: Threaded, *groups: int) -> int:
    """Have these groups ask at step 0 on the server's own thread; the id of the quorum they are in."""

    def ask(lighthouse: Lighthouse) -> None:
        for group in groups:
            text = f"job/{group}:a"
            wire = torchft_pb2.QuorumMember(replica_id=text).SerializeToString()
            asking.append(
                asyncio.ensure_future(
                    lighthouse.coordinator.ask(Member(id=parse_replica_id(text), wire=wire))
                )
            )

    asking: list[asyncio.Future[object]] = []
    server.look(ask)
    number = server.look(lambda lighthouse: lighthouse.coordinator.machines["job"].record.quorum_id)
    assert server.look(lambda lighthouse: lighthouse.coordinator.machines["job"].member_labels())
    return number


@pytest.fixture
def server() -> Iterator[Threaded]:
    with threaded() as running:
        yield running


def attach_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headway-attach"]


def test_the_life_of_a_group(server: Threaded) -> None:
    with AttachStream(server.address, hello()) as stream:
        assert stream.open(10) == Welcome(start_mode=StartMode.FRESH, step=0)
        stream.progress(3, Phase.COMPUTE)
        server.wait(lambda slot: slot is not None and (slot.step, slot.phase) == (3, Phase.COMPUTE))
        assert stream.goodbye(finished=True, step=4)
    slot = server.slot(0)
    assert slot is not None
    assert (slot.gone, slot.step) == (Gone.FINISHED, 4)
    with AttachStream(server.address, hello(group=1)) as late:
        assert late.open(10) == Welcome(start_mode=StartMode.FINISHED, step=4)
    assert attach_threads() == []


def test_rounds_are_told_with_the_phase_and_none_is_not_the_same_as_untold(server: Threaded) -> None:
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
        for step, rounds, understood in ((3, 2, 2), (4, 0, 0), (5, None, 1)):
            stream.progress(step, Phase.COMPUTE, rounds)
            server.wait(lambda slot, step=step: slot is not None and slot.step == step)
            slot = server.slot(0)
            assert slot is not None
            assert slot.rounds == understood


def test_where_the_time_went_is_told_whether_or_not_there_is_much_else_to_say(
    server: Threaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "PULSE_INTERVAL_S", 0.01)
    seconds = {"productive": 1e-6}  # it is younger than the server

    def told() -> bool:
        machine = server.look(lambda lighthouse: lighthouse.coordinator.machines["job"])
        return machine.times.of(0, 0.0) == seconds

    with AttachStream(server.address, hello(), seconds_by_cause=lambda: dict(seconds)) as stream:
        stream.open(10)
        server.wait(lambda slot: told())
        seconds["productive"] = 2.5
        for step in range(200):  # no pulse is due while other words go out
            stream.progress(step, Phase.REDUCE)
        server.wait(lambda slot: told())
    server.wait(lambda slot: slot is not None and slot.gone is Gone.STREAM_BROKE)
    assert told()


def test_every_rank_tells_how_its_rounds_went(server: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "PULSE_INTERVAL_S", 0.01)
    monkeypatch.setattr(lifeline, "PULSE_INTERVAL_S", 0.01)
    told = {rank: RoundTimes(rounds_s=2.0 + rank, waited_s=0.5) for rank in (0, 1)}

    def heard(slot: Slot | None) -> bool:
        lines = {} if slot is None else slot.lines
        return {rank: list(line.waits.told) for rank, line in lines.items()} == {
            rank: [times] for rank, times in told.items()
        }

    first = AttachStream(
        server.address, hello(), seconds_by_cause=lambda: {"productive": 1.0}, round_times=lambda: told[0]
    )
    with first, WatchStream(server.address, hello(rank=1), round_times=lambda: told[1]) as second:
        first.open(10)
        second.open(10)
        server.wait(heard)


def test_leaving_without_a_goodbye_is_a_death(server: Threaded) -> None:
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
    server.wait(lambda slot: slot is not None and slot.gone is Gone.STREAM_BROKE)


def test_the_latest_word_wins(server: Threaded) -> None:
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
        for step in range(5000):
            stream.progress(step, Phase.REDUCE)
        server.wait(lambda slot: slot is not None and slot.step == 4999)


def test_a_superseded_incarnation_is_told_and_stays_away(server: Threaded) -> None:
    with (
        AttachStream(server.address, hello()) as old,
        AttachStream(server.address, hello(incarnation="b")) as new,
    ):
        old.open(10)
        assert old.refusal is None
        new.open(10)
        old._thread.join(10)
        assert old.refusal is not None
        assert "newer incarnation" in old.refusal
        assert not old.goodbye(finished=False, step=0)
        with (
            AttachStream(server.address, hello()) as again,
            pytest.raises(RefusedError, match="newer incarnation"),
        ):
            again.open(10)
        assert new.goodbye(finished=False, step=0)


def attached_ranks(slot: Slot | None) -> list[int]:
    return sorted(slot.lines) if slot is not None else []


def test_a_rank_that_dies_is_told_to_all_ranks_of_the_others(server: Threaded) -> None:
    heard = {(group, rank): Heard() for group in (0, 1) for rank in (0, 1)}
    with (
        AttachStream(server.address, hello(0), heard[0, 0]) as survivor,
        WatchStream(server.address, hello(0, rank=1), heard[0, 1]) as sibling,
        AttachStream(server.address, hello(1), heard[1, 0]) as other,
    ):
        dying = WatchStream(server.address, hello(1, rank=1), heard[1, 1])
        assert [stream.open(10) is not None for stream in (survivor, sibling, other, dying)] == [True] * 4
        quorum_id = make_quorum(server, 0, 1)
        dying.close()
        wanted = Notice(kind=NoticeKind.ATTEMPT_OVER, quorum_id=quorum_id, cause="group 1: rank 1 died")
        for rank in (0, 1):
            assert heard[0, rank].wait() == [wanted]
        assert heard[1, 1].notices == []
        survivor.goodbye(finished=False, step=0)


def test_what_is_abandoned_reaches_the_others_and_not_oneself(server: Threaded) -> None:
    first, second = Heard(), Heard()
    with (
        AttachStream(server.address, hello(0), first) as one,
        AttachStream(server.address, hello(1), second) as two,
    ):
        one.open(10)
        two.open(10)
        quorum_id = make_quorum(server, 0, 1)
        one.abandon(quorum_id, "the heal failed")
        one.abandon(quorum_id, "the heal failed")
        assert second.wait() == [
            Notice(kind=NoticeKind.ATTEMPT_OVER, quorum_id=quorum_id, cause="group 0: the heal failed")
        ]
        assert one.goodbye(finished=False, step=0)
        assert first.notices == []


def test_what_was_abandoned_while_the_server_was_away_is_said_when_it_is_back() -> None:
    heard = Heard()
    with threaded() as first:
        port = int(first.address.rpartition(":")[2])
        one, two = AttachStream(first.address, hello(0)), AttachStream(first.address, hello(1), heard)
        one.open(10)
        two.open(10)
        quorum_id = make_quorum(first, 0, 1)
    with one, two:
        one.abandon(quorum_id, "no luck")
        with threaded(port=port):
            assert heard.wait()[0].quorum_id == quorum_id


def saves_of(server: Threaded) -> Saves:
    return server.look(lambda lighthouse: lighthouse.coordinator.machines["job"].saves)


def test_saves_and_failures_are_said_before_goodbye(server: Threaded) -> None:
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
        stream.saved(10, 3, 2**40, 1.5)
        stream.save_failed(20, "no space\n" + "x" * 5000)
        stream.saved(30, 3, 5, 0.5)
        assert stream.goodbye(finished=True, step=31)
    saves = saves_of(server)
    assert saves.newest is not None
    assert (saves.newest.step, saves.newest.bytes, saves.newest.seconds) == (30, 5, 0.5)
    assert dict(saves.failures) == {0: 1}


def test_what_happened_to_saves_while_the_server_was_away_is_said_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with threaded() as first:
        port = int(first.address.rpartition(":")[2])
        stream = AttachStream(first.address, hello())
        stream.open(10)
        stream.saved(10, 3, 5, 0.5)
        stream.save_failed(20, "no space")
        stream.progress(21, Phase.COMMIT)
        first.wait(lambda slot: slot is not None and slot.step == 21)
        assert dict(saves_of(first).failures) == {0: 1}
    with stream:
        stream.save_failed(30, "no space")
        for step in (40, 50):
            stream.saved(step, 3, 5, 0.5)
        assert stream._saved is not None
        stream._saved_at_s -= 1000.0
        with threaded(port=port) as second:
            assert stream.goodbye(finished=False, step=51, timeout_s=10)
            saves = saves_of(second)
            assert saves.newest is not None
            assert saves.newest.step == 50
            assert saves.newest.age_s == pytest.approx(1000.0, abs=10.0)
            assert dict(saves.failures) == {0: 2}


def test_failures_that_nobody_hears_are_bounded() -> None:
    stream = AttachStream("127.0.0.1:1", hello())
    for step in range(1000):
        stream.save_failed(step, "no space")
    assert [word.step for word in stream._failures] == list(range(984, 1000))
    stream.close()


def test_eviction_is_told_once_on_every_stream_and_is_final(server: Threaded) -> None:
    heard = [Heard(), Heard()]
    with (
        AttachStream(server.address, hello(0), heard[0]) as first,
        WatchStream(server.address, hello(0, rank=1), heard[1]) as second,
    ):
        first.open(10)
        second.open(10)
        assert server.look(lambda lighthouse: lighthouse.coordinator.evict("job", 0))
        for each in (first, second):
            each._thread.join(10)
        for one in heard:
            assert [(n.kind, n.cause) for n in one.notices] == [
                (NoticeKind.EVICTED, "evicted by the operator")
            ]
        assert first.refusal is not None
        assert "counted out" in first.refusal


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [(Refusal.SUPERSEDED, NoticeKind.SUPERSEDED), (Refusal.EVICTED, NoticeKind.EVICTED)],
)
def test_a_rank_that_may_not_come_back_hears_it_as_a_notice(refusal: Refusal, kind: NoticeKind) -> None:
    heard, gate = Heard(), threading.Event()

    def wait_at_the_gate() -> float:
        assert gate.wait(10)
        return 0.0

    with threaded() as first:
        port = int(first.address.rpartition(":")[2])
        old = AttachStream(first.address, hello(incarnation="old"), heard, jitter=wait_at_the_gate)
        old.open(10)
    with threaded(port=port) as second, AttachStream(second.address, hello()) as new:
        new.open(10)
        with old:
            second.look(lambda lighthouse: bury(lighthouse, "job/0:old", refusal))
            gate.set()
            assert [notice.kind for notice in heard.wait()] == [kind]
            old._thread.join(10)
            assert len(heard.notices) == 1
        assert new.goodbye(finished=False, step=0)


def bury(lighthouse: Lighthouse, replica_id: str, refusal: Refusal) -> None:
    table = lighthouse.coordinator.machines["job"].table
    table.lineage.bury(parse_replica_id(replica_id), refusal)


def test_drain_is_told(server: Threaded) -> None:
    heard = Heard()
    with AttachStream(server.address, hello(), heard) as stream:
        stream.open(10)
        assert server.look(lambda lighthouse: lighthouse.coordinator.drain("job", 0))
        assert heard.wait()[0].kind is NoticeKind.DRAIN
        assert not server.look(lambda lighthouse: lighthouse.coordinator.drain("job", 1))
        assert stream.goodbye(finished=False, step=0)


def test_a_silent_rank_is_evicted_and_a_busy_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "SHORTEST_PULSE_TIMEOUT_S", 0.4)
    monkeypatch.setattr(lifeline, "PULSE_INTERVAL_S", 0.05)
    heard = Heard()
    with (
        threaded(heartbeat_timeout_ms=400) as server,
        AttachStream(server.address, hello(), heard) as stream,
    ):
        stream.open(10)
        server.wait(lambda slot: slot is not None and slot.gone is Gone.SILENT)
        assert not any(notice.kind is NoticeKind.EVICTED for notice in heard.notices)
        monkeypatch.setattr(lifeline, "PULSE_INTERVAL_S", 60.0)
        cause = heard.wait_for(NoticeKind.EVICTED).cause
        assert cause.startswith("rank 0 has said nothing for 0.")


def test_a_watch_belongs_to_other_ranks_than_the_first(server: Threaded) -> None:
    for stream in (
        WatchStream(server.address, hello(rank=0)),
        AttachStream(server.address, hello(rank=1)),
        WatchStream(server.address, hello(rank=2)),
    ):
        with stream, pytest.raises(RefusedError, match="malformed Hello"):
            stream.open(10)


def test_the_watches_of_a_group_that_left_end_in_silence(server: Threaded) -> None:
    with AttachStream(server.address, hello()) as stream:
        watch = WatchStream(server.address, hello(rank=1))
        stream.open(10)
        assert watch.open(10)
        assert attached_ranks(server.slot(0)) == [0, 1]
        assert stream.goodbye(finished=False, step=3)
        watch.close()
    server.wait(lambda slot: attached_ranks(slot) == [])
    slot = server.slot(0)
    assert slot is not None
    assert slot.gone is Gone.LEFT


def test_it_attaches_again_after_a_restart_of_the_server() -> None:
    with threaded() as first:
        port = int(first.address.rpartition(":")[2])
        stream = AttachStream(first.address, hello())
        stream.open(10)
    with stream:
        stream.progress(7, Phase.COMMIT)
        with threaded(port=port) as second:
            second.wait(lambda slot: slot is not None and slot.step == 7)
            stream.progress(8, Phase.COMMIT)
            second.wait(lambda slot: slot is not None and slot.step == 8)
            assert stream.goodbye(finished=False, step=8, timeout_s=10)


def test_an_error_of_our_own_does_not_leave_a_rank_deaf(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = lifeline.entering, [FileNotFoundError("gone")]

    def entering(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(lifeline, "entering", entering)
    with threaded() as server, AttachStream(server.address, hello()) as stream:
        assert stream.open(10.0) is not None
    assert [record.message for record in caplog.records] == [
        f"the stream to the Lighthouse at {server.address} broke by an error of our own"
    ]


def test_nobody_answers() -> None:
    with AttachStream("127.0.0.1:1", hello()) as stream:
        started_s = time.monotonic()
        with pytest.raises(UnreachableError, match=r"127.0.0.1:1 has not answered"):
            stream.open(0.2)
        stream.progress(1, Phase.QUORUM)
        assert not stream.goodbye(finished=False, step=1, timeout_s=0.1)
    assert time.monotonic() - started_s < 5
    assert attach_threads() == []


def test_a_server_without_the_service_is_no_error() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with AttachStream(f"127.0.0.1:{port}", hello()) as stream:
            assert stream.open(10) is None
            stream.progress(1, Phase.QUORUM)
            assert not stream.goodbye(finished=True, step=1)
        with WatchStream(f"127.0.0.1:{port}", hello(rank=1)) as watch:
            assert watch.open(10) is None
    finally:
        server.stop(None).wait()


def test_why_it_must_try_again_is_said_when_the_time_is_up(server: Threaded) -> None:
    refused = Refusal.WARMING_UP
    server.look(lambda lighthouse: setattr(lighthouse.coordinator, "attach", lambda _hello: refused))
    with (
        AttachStream(server.address, hello()) as stream,
        pytest.raises(UnreachableError, match=r"not answered in 0 s \(warming_up: "),
    ):
        stream.open(0.4)


def test_close_twice_and_without_open() -> None:
    stream = AttachStream("127.0.0.1:1", hello())
    stream.close()
    stream.close()


def test_retries_are_spread() -> None:
    drawn = threading.Semaphore(0)

    def jitter() -> float:
        drawn.release()
        return 0.0

    with AttachStream("127.0.0.1:1", hello(), jitter=jitter) as stream:
        with pytest.raises(UnreachableError):
            stream.open(0.0)
        assert all(drawn.acquire(timeout=10) for _ in range(3))
