"""Health over the wire: for the whole, for each service, and while the server goes down."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving import Caller, calling, code_of, run

from lighthouse.standard_services import SERVICES

SERVING = health_pb2.HealthCheckResponse.SERVING


def test_it_serves() -> None:
    async def body(caller: Caller) -> None:
        stub = health_pb2_grpc.HealthStub(caller.channel)
        for name in ("", *SERVICES):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert reply.status == SERVING
        unknown = stub.Check(health_pb2.HealthCheckRequest(service="nonsense"), timeout=5)
        assert await code_of(unknown) is grpc.StatusCode.NOT_FOUND

    run(body)


def test_watchers_hear_that_it_goes_down() -> None:
    async def body() -> None:
        serving = calling()
        async with asyncio.timeout(20):
            caller = await serving.__aenter__()
            channel = grpc.aio.insecure_channel(caller.lighthouse.url.removeprefix("http://"))
            request = health_pb2.HealthCheckRequest(service=SERVICES[0])
            watch = health_pb2_grpc.HealthStub(channel).Watch(request)
            assert (await watch.read()).status == SERVING
            await serving.__aexit__(None, None, None)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await channel.close()

    asyncio.run(body())


def test_reflection_where_its_package_is_installed() -> None:
    pytest.importorskip("grpc_reflection")
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async def body(caller: Caller) -> None:
        stub = reflection_pb2_grpc.ServerReflectionStub(caller.channel)
        call = stub.ServerReflectionInfo(timeout=5)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = [service.name for service in (await call.read()).list_services_response.service]
        assert set(SERVICES) <= set(names)
        call.cancel()

    run(body)
