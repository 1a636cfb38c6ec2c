"""Events: to those who watch, about the job they watch, and a slow watcher holds nothing up."""

import asyncio

from lighthouse.events import MAX_UNREAD, MAX_WATCHERS, EventHub


def test_each_watcher_hears_of_its_job() -> None:
    async def body() -> None:
        hub = EventHub()
        one, every = hub.watch("one"), hub.watch("")
        assert one is not None
        assert every is not None
        hub.publish(1.0, "replica_gone", {"job": "two", "cause": "silent"})
        hub.publish(2.0, "replica_gone", {"job": "one"})
        hub.end()
        assert await one.take() == {"t": 2.0, "kind": "replica_gone", "job": "one"}
        assert await one.take() is None
        first = await every.take()
        assert first == {"t": 1.0, "kind": "replica_gone", "job": "two", "cause": "silent"}

    asyncio.run(body())


def test_a_slow_watcher_is_told_how_much_it_lost() -> None:
    async def body() -> None:
        hub = EventHub()
        watcher = hub.watch("")
        assert watcher is not None
        for number in range(MAX_UNREAD + 5):
            hub.publish(float(number), "quorum_changed", {"number": number})
        assert await watcher.take() == {"t": 5.0, "kind": "events_lost", "count": 5}
        assert await watcher.take() == {"t": 5.0, "kind": "quorum_changed", "number": 5}

    asyncio.run(body())


def test_watchers_are_limited_and_those_who_go_make_room() -> None:
    hub = EventHub()
    watchers = [hub.watch("") for _ in range(MAX_WATCHERS)]
    assert None not in watchers
    assert hub.watch("") is None
    first = watchers[0]
    assert first is not None
    hub.drop(first)
    assert hub.watch("") is not None


def test_an_event_is_waited_for() -> None:
    async def body() -> None:
        hub = EventHub()
        watcher = hub.watch("")
        assert watcher is not None
        waiting = asyncio.ensure_future(watcher.take())
        await asyncio.sleep(0)
        hub.publish(1.0, "job_finished", {})
        event = await waiting
        assert event is not None
        assert event["kind"] == "job_finished"

    asyncio.run(body())
