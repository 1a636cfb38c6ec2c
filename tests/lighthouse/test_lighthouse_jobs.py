"""The jobs: bounded in memory and on disk, and what stays of one that was forgotten."""

import pytest
from test_lighthouse_coordinator import Body, SickStore, member, quorum_id, run

from lighthouse import jobs as jobs_module
from lighthouse.clock import ManualClock
from lighthouse.coordinator import Coordinator
from lighthouse.jobs import JobAliveError
from lighthouse.model import JobRecord, Refusal, parse_replica_id
from lighthouse.status import describe


def test_idle_jobs_make_room_and_busy_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MAX_JOBS", 2)

    async def body(coordinator: Coordinator, clock: ManualClock, _store: SickStore) -> None:
        first = await quorum_id(coordinator, "one/0:a")
        await quorum_id(coordinator, "two/0:a")
        assert await coordinator.ask(member("three/0:a")) is Refusal.TOO_MANY_JOBS
        assert coordinator.beat(parse_replica_id("three/0:a")) is Refusal.TOO_MANY_JOBS
        clock.advance(6.0)
        coordinator.beat(parse_replica_id("two/0:a"))
        coordinator.tick()
        await quorum_id(coordinator, "three/0:a")
        assert set(coordinator.machines) == {"two", "three"}
        clock.advance(6.0)
        coordinator.tick()
        assert await quorum_id(coordinator, "one/0:b") > first

    run(body)


def forget_it(first_id: int) -> Body:
    async def body(coordinator: Coordinator, clock: ManualClock, _store: SickStore) -> None:
        assert await quorum_id(coordinator, "job/0:a") >= first_id
        with pytest.raises(JobAliveError, match="groups of job are alive"):
            coordinator.forget("job")
        clock.advance(6.0)
        assert coordinator.forget("job")
        assert not coordinator.forget("job")
        assert describe(coordinator)["jobs"] == []

    return body


def test_of_a_job_that_is_forgotten_nothing_stays_but_where_its_ids_ended() -> None:
    store = run(forget_it(1))
    (record,) = store.load().values()
    floor = record.quorum_id
    assert record == JobRecord(job="job", quorum_id=floor, floor=floor)

    async def again(coordinator: Coordinator, clock: ManualClock, _store: SickStore) -> None:
        assert describe(coordinator)["jobs"] == []
        assert not coordinator.forget("job")
        assert await quorum_id(coordinator, "job/0:b") == floor + 1
        assert coordinator.machines["job"].record.floor == floor
        clock.advance(6.0)
        assert coordinator.forget("job")
        assert store.load()["job"].floor == floor + 1

    run(again, store)


def test_a_job_that_never_had_a_quorum_leaves_nothing() -> None:
    async def body(coordinator: Coordinator, clock: ManualClock, _store: SickStore) -> None:
        assert not coordinator.forget("job")

    assert run(body).load() == {}


def test_jobs_that_were_forgotten_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MAX_JOBS_ON_RECORD", 3)
    store = SickStore()
    store.write(JobRecord(job="real", quorum_id=1, members=("real/0:a",)))
    for job in ("old", "newer"):
        store.write(JobRecord(job=job, quorum_id=4, floor=4))

    async def body(coordinator: Coordinator, _clock: ManualClock, _store: SickStore) -> None:
        await quorum_id(coordinator, "job/0:a")

    assert set(run(body, store).load()) == {"real", "newer", "job"}
