"""Runs a Lighthouse on a thread of its own, for tests of the blocking client."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from serving import config

from lighthouse.address import HostPort, parse_address
from lighthouse.app import Lighthouse, serve
from lighthouse.table import Slot

T = TypeVar("T")


class Threaded:
    """A running Lighthouse whose state can be looked at from the test's thread."""

    def __init__(self, lighthouse: Lighthouse, loop: asyncio.AbstractEventLoop) -> None:
        self._lighthouse = lighthouse
        self._loop = loop
        self.address = parse_address(lighthouse.url)

    def look(self, function: Callable[[Lighthouse], T]) -> T:
        """The function's value, computed on the server's thread."""

        async def body() -> T:
            return function(self._lighthouse)

        return asyncio.run_coroutine_threadsafe(body(), self._loop).result(10)

    def slot(self, group: int) -> Slot | None:
        """The group's slot in the job named `job`."""
        return self.look(lambda lighthouse: _slot_of(lighthouse, group))

    def wait(self, condition: Callable[[Slot | None], bool], group: int = 0, timeout_s: float = 10.0) -> None:
        """Block until the group's slot is as wanted."""
        end_s = time.monotonic() + timeout_s
        while not condition(self.slot(group)):
            assert time.monotonic() < end_s, self.slot(group)
            time.sleep(0.005)


def _slot_of(lighthouse: Lighthouse, group: int) -> Slot | None:
    machine = lighthouse.coordinator.machines.get("job")
    return machine.table.slots.get(group) if machine else None


@contextmanager
def threaded(port: int = 0, **fields: object) -> Iterator[Threaded]:
    """A Lighthouse on 127.0.0.1 for as long as the context lasts."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    ready = threading.Event()
    made: list[Lighthouse] = []

    async def body() -> None:
        bind = HostPort(host="127.0.0.1", port=port)
        async with serve(config(bind=bind, http_bind=None, **fields)) as lighthouse:
            made.append(lighthouse)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(body(),), name="test-lighthouse")
    thread.start()
    try:
        assert ready.wait(10)
        yield Threaded(made[0], loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
    assert not thread.is_alive()
