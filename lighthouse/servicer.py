"""Our own service on grpc.aio, headway.lighthouse.v1: Attach, Status, Forget."""

import asyncio
import json
from typing import Any

import grpc

from lighthouse.coordinator import Coordinator, JobAliveError, Stream
from lighthouse.model import JOB_NAME_RULE, Hello, Phase, Refusal, is_job_name, parse_replica_id
from lighthouse.refusals import SENTENCE, STATUS
from lighthouse.status import describe
from lighthouse.store import StoreError
from lighthouse.wire import decode
from protos import lighthouse_pb2 as pb

SERVICE = "headway.lighthouse.v1.LighthouseService"
HELLO_TIMEOUT_S = 10.0
_MAX_TEXT_CHARS = 1024


class HeadwayServicer:
    """Turns calls into events of the coordinator and back. Runs on the event loop's thread."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def handler(self) -> Any:
        """What a grpc.aio server is given to serve this service."""
        # Bytes in: malformed ones are answered here.
        methods = {
            "Attach": grpc.stream_stream_rpc_method_handler(
                self.attach, response_serializer=pb.AttachResponse.SerializeToString
            ),
            "Status": grpc.unary_unary_rpc_method_handler(
                self.status, response_serializer=pb.StatusResponse.SerializeToString
            ),
            "Forget": grpc.unary_unary_rpc_method_handler(
                self.forget, response_serializer=pb.ForgetResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def attach(self, _requests: Any, context: Any) -> None:
        """Hold a group's stream; when it ends without a goodbye, the group is dead."""
        hello = await self._read_hello(context)
        opened = self._coordinator.attach(hello)
        if isinstance(opened, Refusal):
            await context.abort(STATUS[opened], SENTENCE[opened])
            return
        with opened as stream:
            mode = pb.StartMode.Name(stream.welcome.start_mode)
            welcome = pb.Welcome(start_mode=mode, step=stream.welcome.step)
            await context.write(pb.AttachResponse(welcome=welcome))
            await _follow(stream, context)

    async def _read_hello(self, context: Any) -> Hello:
        try:
            first = await asyncio.wait_for(context.read(), HELLO_TIMEOUT_S)
        except TimeoutError:
            first = grpc.aio.EOF
        try:
            request = pb.AttachRequest() if first is grpc.aio.EOF else decode(pb.AttachRequest, first)
            if request.WhichOneof("event") != "hello":
                raise ValueError("malformed stream: the first message must be a Hello")
            return hello_of(request.hello)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    async def status(self, _request: bytes, _context: Any) -> pb.StatusResponse:
        """The status document."""
        return pb.StatusResponse(json=json.dumps(describe(self._coordinator)))

    async def forget(self, request: bytes, context: Any) -> pb.ForgetResponse:
        """Drop a job that nobody runs."""
        try:
            job = decode(pb.ForgetRequest, request).job
            if not is_job_name(job):
                raise ValueError(f"malformed job name: want {JOB_NAME_RULE}")
            return pb.ForgetResponse(known=self._coordinator.forget(job))
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except JobAliveError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except StoreError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("abort does not return")


def hello_of(message: pb.Hello) -> Hello:
    """Who attaches. Raises ValueError with one sentence if the parts do not fit together."""
    id = parse_replica_id(message.replica_id)
    if not is_job_name(message.job) or (id.job, id.key) != (message.job, message.group):
        raise ValueError("malformed Hello: replica_id must be JOB/GROUP:UUID with the same job and group")
    if max(len(message.fingerprint), len(message.platform)) > _MAX_TEXT_CHARS:
        raise ValueError(f"malformed Hello: fingerprint or platform has over {_MAX_TEXT_CHARS} characters")
    return Hello(
        job=message.job,
        group=message.group,
        replica_id=message.replica_id,
        group_world_size=message.group_world_size,
        fingerprint=message.fingerprint,
        platform=message.platform,
        step=message.step,
    )


async def _follow(stream: Stream, context: Any) -> None:
    """Read what the group says until it leaves, breaks, or is sent away."""
    while True:
        reading = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait((reading, stream.closed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not reading.done():
                reading.cancel()
        if stream.closed.done():
            refusal = stream.closed.result()
            await context.abort(STATUS[refusal], SENTENCE[refusal])
        if reading.result() is grpc.aio.EOF or await _is_last(stream, reading.result(), context):
            return


async def _is_last(stream: Stream, data: bytes, context: Any) -> bool:
    """Act on one message; whether it was the group's last."""
    try:
        request = decode(pb.AttachRequest, data)
        match request.WhichOneof("event"):
            case "progress":
                stream.progress(request.progress.step, _phase_of(request.progress.phase))
            case "goodbye":
                await _take_leave(stream, request.goodbye, context)
                return True
            case "hello":
                raise ValueError("malformed stream: a second Hello")
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    return False


async def _take_leave(stream: Stream, goodbye: pb.Goodbye, context: Any) -> None:
    if not stream.goodbye(finished=goodbye.finished, step=goodbye.step):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the end of the job could not be written down")


def _phase_of(number: int) -> Phase:
    """A phase that this version does not know counts as unspecified."""
    return Phase(number) if number in Phase.__members__.values() else Phase.UNSPECIFIED
