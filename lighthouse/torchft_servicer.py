"""torchft's lighthouse service on grpc.aio: Quorum and Heartbeat, for unmodified torchft clients."""

from typing import Any

import grpc

from lighthouse.coordinator import Coordinator
from lighthouse.model import Refusal, parse_replica_id
from lighthouse.refusals import SENTENCE, STATUS
from lighthouse.wire import decode, member_of
from protos import torchft_pb2

SERVICE = "torchft.LighthouseService"


class TorchftServicer:
    """Turns calls into events of the coordinator and back. Runs on the event loop's thread."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._beaten = torchft_pb2.LighthouseHeartbeatResponse().SerializeToString()

    def handler(self) -> Any:
        """What a grpc.aio server is given to serve this service."""
        # Bytes in and out: malformed ones are answered here, and a quorum's reply is encoded once
        # for all its members.
        methods = {
            "Quorum": grpc.unary_unary_rpc_method_handler(self.quorum),
            "Heartbeat": grpc.unary_unary_rpc_method_handler(self.heartbeat),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def quorum(self, request: bytes, context: Any) -> bytes:
        """Wait until the requester is in a quorum; a cancelled call no longer counts."""
        try:
            member = member_of(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        outcome = await self._coordinator.ask(member)
        if isinstance(outcome, Refusal):
            await context.abort(STATUS[outcome], SENTENCE[outcome])
            raise AssertionError("abort does not return")
        return outcome

    async def heartbeat(self, request: bytes, context: Any) -> bytes:
        """Note the pulse."""
        try:
            beat = decode(torchft_pb2.LighthouseHeartbeatRequest, request)
            id = parse_replica_id(beat.replica_id)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        refusal = self._coordinator.beat(id)
        if refusal is not None:
            await context.abort(STATUS[refusal], SENTENCE[refusal])
        return self._beaten
