"""Services that every gRPC tool knows: health, and reflection where its package is installed."""

from contextlib import suppress
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from lighthouse import servicer, torchft_servicer

SERVICES = (servicer.SERVICE, torchft_servicer.SERVICE)


async def add_standard_services(server: Any) -> Any:
    """Add them to a grpc.aio server that has not started; returns the health servicer.

    Its `enter_graceful_shutdown` says to all who watch that the server goes down.
    """
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    for name in SERVICES:
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    with suppress(ImportError):
        # An extra, for tools such as grpcurl.
        from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return health_servicer
