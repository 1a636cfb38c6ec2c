"""The client's end of the stream: welcome, progress, goodbye, breaks, and what it never blocks."""

import threading
import time
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from threaded import Threaded, threaded

from lighthouse.client import AttachStream, Hello, Phase, RefusedError, StartMode, UnreachableError, Welcome
from lighthouse.slot import Gone


def hello(group: int = 0, incarnation: str = "a", step: int = 0) -> Hello:
    return Hello(
        job="job", group=group, replica_id=f"job/{group}:{incarnation}", group_world_size=1, step=step
    )


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
    finally:
        server.stop(None).wait()


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
