"""The small calls of the client: status, forget, waiting for a server."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest
from test_lighthouse_attach import Heard, hello, make_quorum
from threaded import Threaded, threaded

from lighthouse.client import (
    AttachStream,
    ColdStart,
    NoticeKind,
    RefusedError,
    SaveOffer,
    SavesFound,
    UnreachableError,
    check_may_drain,
    drain,
    evict,
    forget,
    leave,
    parse_address,
    propose_save,
    status,
    wait_until_reachable,
    watch_events,
)
from lighthouse.slot import Gone
from lighthouse.store import MemoryStore, StoreError


@pytest.fixture
def server() -> Iterator[Threaded]:
    with threaded() as running:
        yield running


def test_status_and_forget(server: Threaded) -> None:
    assert status(server.address)["jobs"] == []
    assert not forget(server.address, "job")
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
        assert [job["job"] for job in status(server.address)["jobs"]] == ["job"]
        with pytest.raises(RefusedError, match="groups of job are alive"):
            forget(server.address, "job")
        stream.goodbye(finished=True, step=3)
    server.wait(lambda slot: slot is not None and not slot.lines)
    assert forget(server.address, "job")
    with pytest.raises(ValueError, match="malformed job name 'a b'"):
        forget(server.address, "a b")


def full(_store: MemoryStore, *_arguments: object) -> None:
    raise StoreError("cannot write to the state directory: check the disk and its permissions")


def test_a_full_disk_is_the_reason_that_the_operator_hears(
    server: Threaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
        monkeypatch.setattr(MemoryStore, "write", full)
        with pytest.raises(RefusedError, match="refuses: cannot write to the state directory"):
            evict(server.address, "job", 0)
        assert stream.goodbye(finished=False, step=0)
    server.wait(lambda slot: slot is not None and not slot.lines)
    with pytest.raises(RefusedError, match="refuses: cannot write to the state directory"):
        forget(server.address, "job")


def test_whether_a_drain_would_be_let_through_is_found_out_without_one(server: Threaded) -> None:
    with AttachStream(server.address, hello(group=2)) as stream:
        stream.open(10)
        check_may_drain(server.address, "job")
        slot = server.slot(2)
        assert slot is not None
        assert not slot.draining
    with pytest.raises(UnreachableError):
        check_may_drain("127.0.0.1:1", "job", 0.5)


def test_evict_and_drain_say_whether_the_group_lives(server: Threaded) -> None:
    heard = Heard()
    for call in (evict, drain):
        assert not call(server.address, "job", 0)
        with pytest.raises(ValueError, match="malformed group number -1"):
            call(server.address, "job", -1)
        with pytest.raises(ValueError, match="malformed job name ''"):
            call(server.address, "", 0)
    with AttachStream(server.address, hello(), heard) as stream:
        stream.open(10)
        assert drain(server.address, "job", 0)
        assert evict(server.address, "job", 0)
        heard.wait_for(NoticeKind.EVICTED)
        assert [notice.kind for notice in heard.notices] == [NoticeKind.DRAIN, NoticeKind.EVICTED]
    assert not drain(server.address, "job", 0)


def test_how_to_start_when_nobody_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    save = SaveOffer(name="step-7", step=7, quorum_id=2**50)
    with threaded(heartbeat_timeout_ms=200) as server, AttachStream(server.address, hello()) as stream:
        stream.open(10)
        wait_until(lambda: propose_save(server.address, "job/0:a", None).verdict is ColdStart.LOOK)
        assert propose_save(server.address, "job/0:a", SavesFound()).verdict is ColdStart.FRESH
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "write", full)
            with pytest.raises(UnreachableError, match="cannot write to the state directory"):
                propose_save(server.address, "job/0:a", SavesFound(offer=save))
        answer = propose_save(server.address, "job/0:a", SavesFound(offer=save))
        assert (answer.verdict, answer.save) == (ColdStart.RESTORE, save)
        with pytest.raises(RefusedError, match="unknown: no group of this replica id is attached"):
            propose_save(server.address, "job/1:a", None)
        with pytest.raises(RefusedError, match="a group of a job"):
            propose_save(server.address, "pool", None)
        stream.goodbye(finished=False, step=0)
    with pytest.raises(UnreachableError):
        propose_save("127.0.0.1:1", "job/0:a", None)


def test_leave_without_a_stream(server: Threaded) -> None:
    assert not leave(server.address, "job/0:a")
    make_quorum(server, 0)
    assert leave(server.address, "job/0:a")
    server.wait(lambda slot: slot is not None and slot.gone is Gone.LEFT)
    with pytest.raises(RefusedError, match="malformed replica id"):
        leave(server.address, "job/zero:a")


def test_a_last_save_is_waited_for_until_its_group_says_leave() -> None:
    with threaded(heartbeat_timeout_ms=200) as server:
        with AttachStream(server.address, hello()) as stream:
            stream.open(10)
            make_quorum(server, 0)
            assert stream.goodbye(finished=False, step=4, may_save_s=500.0)
        with AttachStream(server.address, hello(incarnation="b")) as stream:
            stream.open(10)

            def awaited() -> bool:
                answer = propose_save(server.address, "job/0:b", None)
                return "may still save" in answer.cause and answer.verdict is ColdStart.WAIT

            wait_until(lambda: propose_save(server.address, "job/0:b", None).verdict is ColdStart.WAIT)
            assert awaited()
            assert leave(server.address, "job/0:a")
            assert not awaited()
            assert not leave(server.address, "job/0:a")


def test_events_come_as_they_happen(server: Threaded) -> None:
    seen: list[dict[str, object]] = []
    enough = threading.Event()

    def watch() -> None:
        for event in watch_events(server.address, "job"):
            seen.append(event)
            if event["kind"] == "replica_gone":
                enough.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    wait_until(lambda: bool(server.look(lambda lighthouse: lighthouse.coordinator.events._watchers)))
    with AttachStream(server.address, hello(incarnation="s3cret")) as stream:
        stream.open(10)
    assert enough.wait(10)
    server.look(lambda lighthouse: lighthouse.coordinator.events.end())
    watcher.join(10)
    assert not watcher.is_alive()
    assert [event["kind"] for event in seen] == ["replica_appeared", "replica_attached", "replica_gone"]
    assert (seen[-1]["job"], seen[-1]["replica"], seen[-1]["cause"]) == ("job", "group 0", "stream_broke")
    assert "s3cret" not in repr(seen)


def test_whoever_stops_watching_is_forgotten(server: Threaded) -> None:
    events = watch_events(server.address)
    reader = threading.Thread(target=next, args=(events, None))
    reader.start()
    wait_until(lambda: bool(server.look(lambda lighthouse: lighthouse.coordinator.events._watchers)))
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
    reader.join(10)
    events.close()  # type: ignore[attr-defined]
    wait_until(lambda: not server.look(lambda lighthouse: lighthouse.coordinator.events._watchers))
    with pytest.raises(RefusedError, match="malformed job name"):
        next(watch_events(server.address, "a b"))


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_nobody_answers() -> None:
    with pytest.raises(UnreachableError, match=r"no Lighthouse answers at 127\.0\.0\.1:1 "):
        status("127.0.0.1:1")


def test_another_kind_of_server() -> None:
    other = grpc.server(futures.ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with pytest.raises(RefusedError, match="is not a Lighthouse of headway"):
            status(f"127.0.0.1:{port}")
    finally:
        other.stop(None).wait()


def test_waiting_for_a_server_that_runs(server: Threaded) -> None:
    wait_until_reachable(parse_address(f"http://{server.address}"), 10.0)


def test_waiting_for_a_server_that_starts_late() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    waits: list[float] = []
    waited = threading.Event()

    def note(waited_s: float) -> None:
        waits.append(waited_s)
        waited.set()

    arguments = (f"127.0.0.1:{port}", 20.0, note)
    waiter = threading.Thread(target=wait_until_reachable, args=arguments)
    waiter.start()
    assert waited.wait(10)
    with threaded(port=port):
        waiter.join(10)
    assert not waiter.is_alive()
    assert waits[0] == pytest.approx(1.0, abs=0.5)


def test_a_socket_that_only_listens_is_not_a_server() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UnreachableError, match=r"no Lighthouse answers at .* \(waited 0 s\)"):
            wait_until_reachable(f"127.0.0.1:{silent.getsockname()[1]}", 0.3)
