"""The coordinator: calls and streams; a sick disk stops quorums and decisions, and loses nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from serving import config

from lighthouse.clock import ManualClock, RunningClock
from lighthouse.coordinator import Coordinator
from lighthouse.model import (
    ColdStart,
    ColdStartAnswer,
    Hello,
    JobRecord,
    Member,
    Refusal,
    SaveOffer,
    SavesFound,
    StartMode,
    parse_replica_id,
)
from lighthouse.store import MemoryStore, StoreError
from protos import torchft_pb2

Body = Callable[[Coordinator, ManualClock, "SickStore"], Awaitable[None]]


class SickStore(MemoryStore):
    """A store whose disk can be full."""

    full = False

    def write(self, record: JobRecord) -> None:
        if self.full:
            raise StoreError("cannot write: the disk is full")
        super().write(record)


def run(body: Body, store: SickStore | None = None, **fields: object) -> SickStore:
    used = store or SickStore()

    async def main() -> None:
        clock = ManualClock(wall_s=1000.0)
        async with asyncio.timeout(10):
            await body(Coordinator(config(**fields), used, clock), clock, used)

    asyncio.run(main())
    return used


def member(text: str, step: int = 0) -> Member:
    wire = torchft_pb2.QuorumMember(replica_id=text, step=step).SerializeToString()
    return Member(id=parse_replica_id(text), step=step, wire=wire)


def hello(group: int, incarnation: str = "a") -> Hello:
    return Hello(job="job", group=group, replica_id=f"job/{group}:{incarnation}", group_world_size=1)


async def quorum_id(coordinator: Coordinator, text: str, step: int = 0) -> int:
    reply = await coordinator.ask(member(text, step))
    assert isinstance(reply, bytes)
    return torchft_pb2.LighthouseQuorumResponse.FromString(reply).quorum.quorum_id


def test_ids_start_at_one_with_a_directory_and_above_all_earlier_ones_without(tmp_path: Path) -> None:
    async def with_disk(coordinator: Coordinator, _clock: ManualClock, _store: SickStore) -> None:
        assert await quorum_id(coordinator, "job/0:a") == 1

    async def without(coordinator: Coordinator, _clock: ManualClock, _store: SickStore) -> None:
        assert await quorum_id(coordinator, "job/0:a") == 1000 * 4096 + 1

    run(with_disk, state_dir=tmp_path)
    run(without)


def test_a_full_disk_makes_callers_wait_until_there_is_room() -> None:
    async def body(coordinator: Coordinator, clock: ManualClock, store: SickStore) -> None:
        store.full = True
        waiting = asyncio.ensure_future(coordinator.ask(member("job/0:a")))
        await asyncio.sleep(0)
        coordinator.tick()
        assert coordinator.store_trouble == "cannot write: the disk is full"
        assert not waiting.done()
        store.full = False
        clock.advance(0.1)
        coordinator.tick()
        assert isinstance(await waiting, bytes)
        assert coordinator.store_trouble == ""

    assert run(body).load()["job"].quorum_id == 1000 * 4096 + 1


def test_the_end_of_a_job_is_not_promised_before_it_is_on_disk() -> None:
    async def body(coordinator: Coordinator, clock: ManualClock, store: SickStore) -> None:
        stream = coordinator.attach(hello(0))
        assert not isinstance(stream, Refusal)
        store.full = True
        with stream:
            assert not stream.goodbye(finished=True, step=9)
        store.full = False
        coordinator.tick()
        late = coordinator.attach(hello(1))
        assert not isinstance(late, Refusal)
        assert late.welcome.start_mode is StartMode.FINISHED

    assert run(body).load()["job"].finished_step == 9


def test_an_operator_evicts_nobody_while_the_disk_is_full() -> None:
    async def refused(coordinator: Coordinator, clock: ManualClock, store: SickStore) -> None:
        await quorum_id(coordinator, "job/0:a")
        store.full = True
        with pytest.raises(StoreError, match="the disk is full"):
            coordinator.evict("job", 0)
        assert coordinator.machines["job"].table.slots[0].gone is None
        store.full = False
        assert coordinator.evict("job", 0)
        assert not coordinator.evict("job", 0)

    async def after_a_restart(coordinator: Coordinator, _clock: ManualClock, _store: SickStore) -> None:
        assert coordinator.attach(hello(0, "a")) is Refusal.EVICTED

    run(after_a_restart, run(refused))


def test_what_is_on_record_is_taken_up() -> None:
    store = SickStore()
    store.write(JobRecord(job="job", quorum_id=70, members=("job/0:a",), max_step=5))

    async def body(coordinator: Coordinator, _clock: ManualClock, _store: SickStore) -> None:
        assert await quorum_id(coordinator, "job/0:a", step=5) == 71
        assert coordinator.machines["job"].record.max_step == 5

    run(body, store)


def test_no_save_is_decided_on_while_the_disk_is_full() -> None:
    store = SickStore()
    store.write(JobRecord(job="job", quorum_id=7, members=("job/0:a",), max_step=40))
    offer = SaveOffer(name="save", step=30, quorum_id=7)
    id = parse_replica_id("job/0:b")

    async def body(coordinator: Coordinator, clock: ManualClock, store: SickStore) -> None:
        coordinator.attach(hello(0, "b"))
        clock.advance(5.0)
        coordinator.tick()
        store.full = True
        with pytest.raises(StoreError, match="the disk is full"):
            coordinator.propose_save(id, SavesFound(offer=offer))
        assert coordinator.machines["job"].record.restore is None
        store.full = False
        answer = coordinator.propose_save(id, SavesFound(offer=offer))
        assert isinstance(answer, ColdStartAnswer)
        assert (answer.verdict, answer.save) == (ColdStart.RESTORE, offer)

    record = run(body, store).load()["job"]
    assert (record.max_step, record.members) == (30, ())
    assert record.restore is not None

    async def after_a_restart(coordinator: Coordinator, clock: ManualClock, _store: SickStore) -> None:
        coordinator.attach(hello(0, "c"))
        clock.advance(5.0)
        answer = coordinator.propose_save(parse_replica_id("job/0:c"), None)
        assert isinstance(answer, ColdStartAnswer)
        assert answer.verdict is ColdStart.LOOK, "whoever was told is gone for good"

    run(after_a_restart, store)


def test_a_proposal_for_a_job_that_nobody_runs_makes_none() -> None:
    id = parse_replica_id("job/0:a")

    async def body(coordinator: Coordinator, clock: ManualClock, _store: SickStore) -> None:
        answer = coordinator.propose_save(id, None)
        assert isinstance(answer, ColdStartAnswer)
        assert answer.verdict is ColdStart.WAIT, "its group may not be attached again yet"
        clock.advance(5.0)
        assert coordinator.propose_save(id, None) is Refusal.UNKNOWN
        assert coordinator.machines == {}

    run(body)


def test_hanging_up_ends_calls_and_streams() -> None:
    async def body(coordinator: Coordinator, _clock: ManualClock, _store: SickStore) -> None:
        stream = coordinator.attach(hello(0))
        assert not isinstance(stream, Refusal)
        waiting = asyncio.ensure_future(coordinator.ask(member("job/0:a")))
        await asyncio.sleep(0)
        coordinator.hang_up()
        assert await waiting is Refusal.GOING_DOWN
        assert await stream.outbox.take() is Refusal.GOING_DOWN

    run(body, min_replicas=2)


def test_a_cancelled_ask_leaves_nothing_behind() -> None:
    async def body(coordinator: Coordinator, _clock: ManualClock, _store: SickStore) -> None:
        waiting = asyncio.ensure_future(coordinator.ask(member("job/0:a")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert coordinator.machines["job"].table.slots[0].calls == []
        assert coordinator._calls == {}

    run(body, min_replicas=2)


def test_time_without_any_job_is_no_pause() -> None:
    async def main() -> None:
        source = ManualClock()
        running = RunningClock(source, longest_gap_s=1.0)
        coordinator = Coordinator(config(), MemoryStore(), running)
        for _ in range(20):
            source.advance(0.5)
            coordinator.tick()
        assert running.now_s() == pytest.approx(10.0)
        assert running.paused_s == 0

    asyncio.run(main())
