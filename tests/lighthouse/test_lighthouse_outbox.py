"""What a rank is still to be told: in order, waited for, and bounded."""

import asyncio

from lighthouse.model import Notice, NoticeKind, Refusal
from lighthouse.outbox import Outbox


def notice(number: int) -> Notice:
    return Notice(kind=NoticeKind.ATTEMPT_OVER, quorum_id=number)


def test_in_order_and_waited_for() -> None:
    async def body() -> None:
        outbox = Outbox()
        waiting = asyncio.ensure_future(outbox.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        for number in (1, 2):
            outbox.put(notice(number))
        outbox.put(Refusal.EVICTED)
        assert [await waiting, await outbox.take(), await outbox.take()] == [
            notice(1),
            notice(2),
            Refusal.EVICTED,
        ]

    asyncio.run(body())


def test_a_cancelled_wait_loses_nothing() -> None:
    async def body() -> None:
        outbox = Outbox()
        waiting = asyncio.ensure_future(outbox.take())
        await asyncio.sleep(0)
        waiting.cancel()
        outbox.put(notice(1))
        assert await outbox.take() == notice(1)

    asyncio.run(body())


def test_the_latest_are_kept_for_one_that_does_not_read() -> None:
    async def body() -> None:
        outbox = Outbox()
        for number in range(1000):
            outbox.put(notice(number))
        assert await outbox.take() == notice(1000 - 64)

    asyncio.run(body())
