"""What a rank may say on its stream, and what ends it."""

import asyncio

import grpc
import pytest
from serving import Caller, code_of, hello, run, until

from lighthouse.held_stream import hello_of
from lighthouse.slot import Gone
from protos import lighthouse_pb2 as pb

ATTACH = "/headway.lighthouse.v1.LighthouseService/Attach"


def message(**fields: object) -> pb.Hello:
    return hello(1, **fields).hello


def test_all_of_a_hello_is_read() -> None:
    said = hello_of(
        message(fingerprint="f", platform="p", step=7, group_world_size=4, group_rank=3),
    )
    assert (said.job, said.group, said.replica_id) == ("job", 1, "job/1:a")
    assert (said.fingerprint, said.platform, said.step) == ("f", "p", 7)
    assert (said.group_world_size, said.group_rank) == (4, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"job": "a b"},
        {"replica_id": "job/2:a"},
        {"replica_id": "pool"},
        {"fingerprint": "x" * 1025},
        {"platform": "x" * 1025},
        {"group_world_size": 2, "group_rank": 2},
        {"group_world_size": 0, "group_rank": 70_000},
    ],
)
def test_a_hello_that_makes_no_sense_is_one_sentence(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^malformed [^\n]+$"):
        hello_of(message(**fields))


def test_unknown_words_of_a_later_version_are_let_be() -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(0)
        unknown = caller.channel.stream_stream(ATTACH)(timeout=30.0)
        await unknown.write(hello(1).SerializeToString())
        await unknown.read()
        await unknown.write(b"\xba\x3e\x03abc")  # field 999, of a version to come
        await unknown.write(pb.AttachRequest(progress=pb.Progress(step=5)).SerializeToString())
        slots = caller.lighthouse.coordinator.machines["job"].table.slots
        await until(lambda: slots[1].step == 5)
        stream.cancel()
        unknown.cancel()

    run(body)


def test_garbage_on_a_stream_ends_it_and_that_is_a_death() -> None:
    async def body(caller: Caller) -> None:
        raw = caller.channel.stream_stream(ATTACH)(timeout=30.0)
        await raw.write(hello(0).SerializeToString())
        await raw.read()
        await raw.write(b"\xff" * 50)
        assert await code_of(raw) is grpc.StatusCode.INVALID_ARGUMENT
        assert caller.lighthouse.coordinator.machines["job"].table.slots[0].gone is Gone.STREAM_BROKE

    run(body)


def test_a_stream_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lighthouse.held_stream.HELLO_TIMEOUT_S", 0.05)

    async def body(caller: Caller) -> None:
        assert await code_of(caller.attach()) is grpc.StatusCode.INVALID_ARGUMENT

    run(body)


def test_many_ranks_hear_at_once() -> None:
    async def body(caller: Caller) -> None:
        watch = caller.channel.stream_stream(
            "/headway.lighthouse.v1.LighthouseService/Watch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        first = await caller.attached(0)
        ranks = []
        for rank in range(1, 32):
            call = watch(timeout=30.0)
            await call.write(pb.WatchRequest(hello=hello(0, group_world_size=32, group_rank=rank).hello))
            assert (await call.read()).WhichOneof("event") is None
            ranks.append(call)
        caller.lighthouse.coordinator.evict("job", 0)
        heard = await asyncio.gather(*(call.read() for call in (first, *ranks)))
        assert {response.notice.kind for response in heard} == {pb.NOTICE_KIND_EVICTED}
        codes = await asyncio.gather(*(code_of(call) for call in (first, *ranks)))
        assert set(codes) == {grpc.StatusCode.FAILED_PRECONDITION}

    run(body)
