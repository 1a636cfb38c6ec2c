"""Runs a Lighthouse inside a test's own event loop and speaks to it over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from lighthouse.address import HostPort
from lighthouse.app import Lighthouse, serve
from lighthouse.config import LighthouseConfig
from protos import lighthouse_pb2 as pb
from protos import torchft_pb2

LOCAL = HostPort(host="127.0.0.1", port=0)


def config(**fields: object) -> LighthouseConfig:
    """Free ports on the loopback, nothing on disk."""
    base: dict[str, object] = {"bind": LOCAL, "http_bind": LOCAL, "state_dir": None, "quorum_tick_ms": 20}
    return LighthouseConfig(**(base | fields))  # type: ignore[arg-type]


class Caller:
    """An asynchronous client that can say anything, also what no proper client would."""

    def __init__(self, lighthouse: Lighthouse, channel: Any) -> None:
        self.lighthouse = lighthouse
        self.channel = channel

    def quorum(self, replica_id: str, timeout_s: float = 10.0, **fields: object) -> Any:
        member = torchft_pb2.QuorumMember(replica_id=replica_id, **fields)  # type: ignore[arg-type]
        call = self.channel.unary_unary(
            "/torchft.LighthouseService/Quorum",
            request_serializer=torchft_pb2.LighthouseQuorumRequest.SerializeToString,
            response_deserializer=torchft_pb2.LighthouseQuorumResponse.FromString,
        )
        return call(torchft_pb2.LighthouseQuorumRequest(requester=member), timeout=timeout_s)

    def beat(self, replica_id: str) -> Any:
        return self.raw("/torchft.LighthouseService/Heartbeat", heartbeat(replica_id))

    def raw(self, method: str, request: bytes) -> Any:
        return self.channel.unary_unary(method)(request, timeout=10.0)

    def attach(self) -> Any:
        return self._stream("Attach", pb.AttachRequest, pb.AttachResponse)

    def watch(self) -> Any:
        return self._stream("Watch", pb.WatchRequest, pb.WatchResponse)

    def _stream(self, name: str, request: Any, response: Any) -> Any:
        method = self.channel.stream_stream(
            f"/headway.lighthouse.v1.LighthouseService/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return method(timeout=30.0)

    async def attached(self, group: int, incarnation: str = "a", step: int = 0) -> Any:
        """An open stream whose Welcome was read."""
        call = self.attach()
        await call.write(hello(group, incarnation, step=step))
        welcome = await call.read()
        assert welcome.WhichOneof("event") == "welcome"
        return call


def heartbeat(replica_id: str) -> bytes:
    return torchft_pb2.LighthouseHeartbeatRequest(replica_id=replica_id).SerializeToString()


def hello(group: int, incarnation: str = "a", **fields: object) -> pb.AttachRequest:
    base: dict[str, object] = {
        "job": "job",
        "group": group,
        "replica_id": f"job/{group}:{incarnation}",
        "group_world_size": 1,
    }
    return pb.AttachRequest(hello=pb.Hello(**(base | fields)))  # type: ignore[arg-type]


@asynccontextmanager
async def calling(**fields: object) -> AsyncIterator[Caller]:
    """A running Lighthouse and a client of it."""
    async with serve(config(**fields)) as lighthouse:
        target = lighthouse.url.removeprefix("http://")
        async with grpc.aio.insecure_channel(target) as channel:
            yield Caller(lighthouse, channel)


def run(test: Callable[[Caller], Awaitable[None]], **fields: object) -> None:
    """Run the coroutine against a fresh Lighthouse, at most 20 s."""

    async def body() -> None:
        async with asyncio.timeout(20), calling(**fields) as caller:
            await test(caller)

    asyncio.run(body())


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop work until the condition holds; the caller's timeout bounds it."""
    while not condition():
        await asyncio.sleep(0.005)


async def code_of(call: Any) -> grpc.StatusCode:
    """The status with which a call ends."""
    return await call.code()
