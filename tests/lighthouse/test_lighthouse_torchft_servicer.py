"""torchft's service over real sockets: answers, cancellation, bad callers, many waiters."""

import asyncio
import time

import grpc
from serving import Caller, code_of, heartbeat, run, until

from lighthouse.model import POOL
from protos import torchft_pb2


def calls_of(caller: Caller, job: str, key: int | str) -> int:
    machine = caller.lighthouse.coordinator.machines.get(job)
    slot = machine.table.slots.get(key) if machine else None
    return len(slot.calls) if slot else 0


def test_all_members_get_the_same_quorum() -> None:
    async def body(caller: Caller) -> None:
        replies = await asyncio.gather(*(caller.quorum(f"job/{g}:a") for g in range(3)))
        assert len({reply.SerializeToString() for reply in replies}) == 1
        assert [m.replica_id for m in replies[0].quorum.participants] == ["job/0:a", "job/1:a", "job/2:a"]
        again = await asyncio.gather(*(caller.quorum(f"job/{g}:a", step=1) for g in range(3)))
        assert again[0].quorum.quorum_id == replies[0].quorum.quorum_id > 1

    run(body, expected_groups=3)


def test_a_cancelled_caller_no_longer_counts() -> None:
    async def body(caller: Caller) -> None:
        for name in ("job/0:a", "job/1:a", "job/2:a"):
            await caller.beat(name)
        dead = caller.quorum("job/2:a")
        await until(lambda: calls_of(caller, "job", 2) == 1)
        dead.cancel()
        await until(lambda: calls_of(caller, "job", 2) == 0)
        stream = await caller.attached(2)
        stream.cancel()
        replies = await asyncio.gather(caller.quorum("job/0:a"), caller.quorum("job/1:a"))
        assert [m.replica_id for m in replies[0].quorum.participants] == ["job/0:a", "job/1:a"]

    run(body)


def test_a_deadline_takes_the_request_back_and_asking_again_is_no_error() -> None:
    async def body(caller: Caller) -> None:
        await caller.beat("job/1:a")
        assert await code_of(caller.quorum("job/0:a", timeout_s=0.1)) is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: calls_of(caller, "job", 0) == 0)
        replies = await asyncio.gather(caller.quorum("job/0:a"), caller.quorum("job/1:a"))
        assert len(replies[0].quorum.participants) == 2

    run(body)


def test_jobs_are_kept_apart() -> None:
    async def body(caller: Caller) -> None:
        names = ["one/0:a", "two/0:a", "ddp_0:a"]
        replies = await asyncio.gather(*(caller.quorum(name) for name in names))
        members = [[m.replica_id for m in reply.quorum.participants] for reply in replies]
        assert members == [[name] for name in names]
        assert set(caller.lighthouse.coordinator.machines) == {"one", "two", POOL}

    run(body)


def test_bad_callers_get_an_error_and_the_job_goes_on() -> None:
    async def body(caller: Caller) -> None:
        await caller.beat("job/1:a")
        waiting = caller.quorum("job/0:a")
        await until(lambda: calls_of(caller, "job", 0) == 1)
        bad = grpc.StatusCode.INVALID_ARGUMENT
        assert await code_of(caller.quorum("job/zero:a")) is bad
        assert await code_of(caller.beat("")) is bad
        assert await code_of(caller.raw("/torchft.LighthouseService/Quorum", b"")) is bad
        garbage = caller.raw("/torchft.LighthouseService/Quorum", b"\xff" * 100)
        assert await code_of(garbage) is bad
        unknown = caller.raw("/torchft.LighthouseService/NoSuchMethod", b"")
        assert await code_of(unknown) is grpc.StatusCode.UNIMPLEMENTED
        huge = caller.raw("/torchft.LighthouseService/Heartbeat", heartbeat("x" * 1_000_000))
        assert await code_of(huge) is grpc.StatusCode.RESOURCE_EXHAUSTED
        reply, _ = await asyncio.gather(waiting, caller.quorum("job/1:a"))
        assert len(reply.quorum.participants) == 2

    run(body)


def test_waiting_quorums_do_not_starve_heartbeats() -> None:
    async def body(caller: Caller) -> None:
        await caller.beat("job/999:a")
        waiting = [caller.quorum(f"job/{g}:a") for g in range(200)]
        await until(lambda: calls_of(caller, "job", 199) == 1)
        took_s = []
        for _ in range(100):
            started_s = time.monotonic()
            await caller.beat("job/999:a")
            took_s.append(time.monotonic() - started_s)
        assert sorted(took_s)[98] < 0.25
        reply = await caller.quorum("job/999:a")
        assert len(reply.quorum.participants) == 201
        assert {(await call).quorum.quorum_id for call in waiting} == {reply.quorum.quorum_id}

    run(body)


def test_invented_names_fill_no_memory_and_members_stay() -> None:
    async def body(caller: Caller) -> None:
        await caller.quorum("ddp_0:a")
        codes: list[grpc.StatusCode] = []
        for start in range(0, 1600, 200):
            names = [f"invented{number}" for number in range(start, start + 200)]
            codes += await asyncio.gather(*(code_of(caller.beat(name)) for name in names))
        assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        machine = caller.lighthouse.coordinator.machines[POOL]
        assert len(machine.table.slots) == 1024
        assert (await caller.quorum("ddp_0:a")).quorum.quorum_id == machine.record.quorum_id

    run(body)


def test_a_caller_of_the_past_is_told_so() -> None:
    async def body(caller: Caller) -> None:
        await caller.beat("job/0:old")
        await caller.quorum("job/0:new")
        await caller.beat("job/0:old")
        call = caller.quorum("job/0:old")
        assert await code_of(call) is grpc.StatusCode.FAILED_PRECONDITION
        assert "newer incarnation" in await call.details()

    run(body)


def test_replies_decode_with_torchfts_messages() -> None:
    async def body(caller: Caller) -> None:
        reply = await caller.quorum("ddp_0", data='{"my_data": 1234}')
        assert isinstance(reply, torchft_pb2.LighthouseQuorumResponse)
        assert reply.quorum.participants[0].data == '{"my_data": 1234}'
        assert reply.quorum.created.seconds > 1.7e9

    run(body)
