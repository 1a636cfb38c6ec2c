"""Our own service on grpc.aio, headway.lighthouse.v1: streams of the ranks, status, the operator's calls."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from lighthouse.coordinator import Coordinator, Stream
from lighthouse.gate import Gate
from lighthouse.held_stream import Request, StreamError, hold, read_hello
from lighthouse.identity import Mismatch
from lighthouse.jobs import JobAliveError
from lighthouse.model import JOB_NAME_RULE, Refusal, is_job_name, parse_replica_id
from lighthouse.refusals import SENTENCE, STATUS
from lighthouse.status import describe
from lighthouse.store import StoreError
from lighthouse.wire import cold_start_message, decode, proposal_of
from protos import lighthouse_pb2 as pb

SERVICE = "headway.lighthouse.v1.LighthouseService"
M = TypeVar("M", bound=Message)


class HeadwayServicer:
    """Turns calls into events of the coordinator and back. Runs on the event loop's thread."""

    def __init__(self, coordinator: Coordinator, gate: Gate) -> None:
        self._coordinator = coordinator
        self._gate = gate

    def handler(self) -> Any:
        """What a grpc.aio server is given to serve this service."""
        # Bytes in: malformed ones are answered here.
        methods = {
            "Status": _unary(self.status),
            "WatchEvents": grpc.unary_stream_rpc_method_handler(
                self.watch_events, response_serializer=lambda message: message.SerializeToString()
            ),
            "Challenge": _unary(self._gate.challenge),
        }
        # Whoever calls one of these must have shown who it is.
        streams = {"Attach": self.attach, "Watch": self.watch}
        calls: dict[str, Any] = {
            "Leave": self.leave,
            "Evict": self.evict,
            "Drain": self.drain,
            "Forget": self.forget,
            "ProposeSave": self.propose_save,
        }
        methods |= {name: _both_stream(self._gate.guard(name, method)) for name, method in streams.items()}
        methods |= {name: _unary(self._gate.guard(name, method)) for name, method in calls.items()}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def attach(self, _requests: Any, context: Any) -> None:
        """Hold the stream of a group's rank 0; when it ends without a goodbye, the group is dead."""

        async def welcome(stream: Stream) -> None:
            mode = pb.StartMode.Name(stream.welcome.start_mode)
            message = pb.Welcome(start_mode=mode, step=stream.welcome.step)
            await context.write(pb.AttachResponse(welcome=message))

        await self._serve_stream(
            context, pb.AttachRequest, welcome, lambda notice: pb.AttachResponse(notice=notice)
        )

    async def watch(self, _requests: Any, context: Any) -> None:
        """Hold the stream of another rank. An empty first response says that it is open."""

        async def open_it(_stream: Stream) -> None:
            await context.write(pb.WatchResponse())

        await self._serve_stream(
            context, pb.WatchRequest, open_it, lambda notice: pb.WatchResponse(notice=notice)
        )

    async def _serve_stream(
        self,
        context: Any,
        kind: type[Request],
        begin: Callable[[Stream], Any],
        wrap: Callable[[pb.Notice], object],
    ) -> None:
        try:
            opened = self._coordinator.attach(await read_hello(context, kind))
            if isinstance(opened, Refusal):
                raise StreamError(STATUS[opened], SENTENCE[opened])
            if isinstance(opened, Mismatch):
                raise StreamError(grpc.StatusCode.FAILED_PRECONDITION, opened.sentence())
            with opened as stream:
                await begin(stream)
                await hold(stream, context, kind, wrap)
        except StreamError as error:
            await context.abort(error.code, str(error))

    async def leave(self, request: bytes, context: Any) -> pb.LeaveResponse:
        """Let an incarnation go that says so on no stream."""
        try:
            id = parse_replica_id(decode(pb.LeaveRequest, request).replica_id)
        except ValueError as error:
            await _refuse(context, error)
        return pb.LeaveResponse(known=self._coordinator.leave(id))

    async def status(self, _request: bytes, _context: Any) -> pb.StatusResponse:
        """The status document."""
        return pb.StatusResponse(json=json.dumps(describe(self._coordinator)))

    async def watch_events(self, request: bytes, context: Any) -> None:
        """Send events until the caller goes away."""
        try:
            job = decode(pb.WatchEventsRequest, request).job
            if job and not is_job_name(job):
                raise ValueError(f"malformed job name: want {JOB_NAME_RULE}")
        except ValueError as error:
            await _refuse(context, error)
        watcher = self._coordinator.events.watch(job)
        if watcher is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many callers watch events")
            return
        try:
            await context.send_initial_metadata(())
            while (event := await watcher.take()) is not None:
                await context.write(pb.WatchEventsResponse(json=json.dumps(event)))
        finally:
            self._coordinator.events.drop(watcher)

    async def evict(self, request: bytes, context: Any) -> pb.EvictResponse:
        """Count a group out."""
        message = await _about_a_job(pb.EvictRequest, request, context)
        try:
            return pb.EvictResponse(known=self._coordinator.evict(message.job, message.group))
        except StoreError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError("abort does not return")

    async def drain(self, request: bytes, context: Any) -> pb.DrainResponse:
        """Ask a group to leave at the end of its step."""
        message = await _about_a_job(pb.DrainRequest, request, context)
        return pb.DrainResponse(known=self._coordinator.drain(message.job, message.group))

    async def forget(self, request: bytes, context: Any) -> pb.ForgetResponse:
        """Drop a job that nobody runs."""
        message = await _about_a_job(pb.ForgetRequest, request, context)
        try:
            return pb.ForgetResponse(known=self._coordinator.forget(message.job))
        except (JobAliveError, StoreError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError("abort does not return")

    async def propose_save(self, request: bytes, context: Any) -> pb.ProposeSaveResponse:
        """Tell a group how to start that may have nobody to heal from."""
        try:
            id, found = proposal_of(decode(pb.ProposeSaveRequest, request))
            answer = self._coordinator.propose_save(id, found)
            if not isinstance(answer, Refusal):
                return cold_start_message(answer)
            await context.abort(STATUS[answer], SENTENCE[answer])
        except ValueError as error:
            await _refuse(context, error)
        except StoreError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("abort does not return")


def _unary(method: Callable[[bytes, Any], Any]) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        method, response_serializer=lambda message: message.SerializeToString()
    )


def _both_stream(method: Callable[[Any, Any], Any]) -> Any:
    return grpc.stream_stream_rpc_method_handler(
        method, response_serializer=lambda message: message.SerializeToString()
    )


async def _about_a_job(kind: type[M], request: bytes, context: Any) -> M:
    """The message, whose field `job` names one properly; else the call ends here."""
    try:
        message = decode(kind, request)
        if not is_job_name(message.job):  # type: ignore[attr-defined]
            raise ValueError(f"malformed job name: want {JOB_NAME_RULE}")
        return message
    except ValueError as error:
        await _refuse(context, error)
    raise AssertionError("abort does not return")


async def _refuse(context: Any, error: ValueError) -> None:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
