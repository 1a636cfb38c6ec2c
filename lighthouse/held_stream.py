"""The server's end of a rank's stream: takes in what the rank says, hands on what it is told.

Everything runs on the event loop's thread.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from lighthouse.coordinator import Stream
from lighthouse.lag import RoundTimes
from lighthouse.model import (
    LARGEST_NUMBER,
    Hello,
    Notice,
    Phase,
    Refusal,
    is_job_name,
    parse_replica_id,
)
from lighthouse.refusals import SENTENCE, STATUS
from lighthouse.saves import Saved
from lighthouse.wire import decode
from protos import lighthouse_pb2 as pb

HELLO_TIMEOUT_S = 10.0
MAX_RANKS = 65_536
_MAX_TEXT_CHARS = 1024
_MAX_SAVE_S = 600.0

Request = pb.AttachRequest | pb.WatchRequest


class StreamError(Exception):
    """A stream must end with this status and sentence."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


async def read_hello(context: Any, kind: type[Request]) -> Hello:
    """Who opens this stream. Raises StreamError if that is not said properly and in time."""
    try:
        first = await asyncio.wait_for(context.read(), HELLO_TIMEOUT_S)
    except TimeoutError:
        first = grpc.aio.EOF
    try:
        request = kind() if first is grpc.aio.EOF else decode(kind, first)
        if request.WhichOneof("event") != "hello":
            raise ValueError("malformed stream: the first message must be a Hello")
        hello = hello_of(request.hello)
        if (hello.group_rank == 0) != (kind is pb.AttachRequest):
            raise ValueError("malformed Hello: rank 0 of a group attaches, every other rank watches")
        return hello
    except ValueError as error:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


def hello_of(message: pb.Hello) -> Hello:
    """Who it is. Raises ValueError with one sentence if the parts do not fit together."""
    id = parse_replica_id(message.replica_id)
    if not is_job_name(message.job) or (id.job, id.key) != (message.job, message.group):
        raise ValueError("malformed Hello: replica_id must be JOB/GROUP:UUID with the same job and group")
    if max(len(message.fingerprint), len(message.platform)) > _MAX_TEXT_CHARS:
        raise ValueError(f"malformed Hello: fingerprint or platform has over {_MAX_TEXT_CHARS} characters")
    if message.group_rank >= (message.group_world_size or MAX_RANKS):
        raise ValueError("malformed Hello: group_rank must be below group_world_size")
    return Hello(
        job=message.job,
        group=message.group,
        replica_id=message.replica_id,
        group_world_size=message.group_world_size,
        fingerprint=message.fingerprint,
        platform=message.platform,
        step=message.step,
        group_rank=message.group_rank,
        backstop=message.backstop,
    )


async def hold(
    stream: Stream, context: Any, kind: type[Request], wrap: Callable[[pb.Notice], object]
) -> None:
    """Read and write until the group leaves, breaks, or is sent away. Raises StreamError.

    `wrap` makes a response of a notice.
    """
    listening = asyncio.ensure_future(_listen(stream, context, kind))
    telling = asyncio.ensure_future(_tell(stream, context, wrap))
    try:
        done, _ = await asyncio.wait((listening, telling), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (listening, telling):
            task.cancel()
        for task in (listening, telling):
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _listen(stream: Stream, context: Any, kind: type[Request]) -> None:
    while (data := await context.read()) is not grpc.aio.EOF:
        try:
            if _is_last(stream, decode(kind, data)):
                return
        except ValueError as error:
            raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


async def _tell(stream: Stream, context: Any, wrap: Callable[[pb.Notice], object]) -> None:
    while True:
        match await stream.outbox.take():
            case Refusal() as refusal:
                raise StreamError(STATUS[refusal], SENTENCE[refusal])
            case Notice() as notice:
                await context.write(wrap(_notice_message(notice)))


def _is_last(stream: Stream, request: Request) -> bool:
    """Act on one message; whether it was the last. Raises ValueError or StreamError."""
    match request.WhichOneof("event"):
        case "pulse":
            said = request.pulse
            times = RoundTimes(rounds_s=said.rounds_s, waited_s=said.waited_s) if said.rounds_s else None
            stream.pulse(said.seconds if isinstance(request, pb.AttachRequest) else None, times)
        case "hello":
            raise ValueError("malformed stream: a second Hello")
        case word if isinstance(request, pb.AttachRequest):
            return _is_last_word(stream, request, word)
    return False


def _is_last_word(stream: Stream, request: pb.AttachRequest, word: str | None) -> bool:
    match word:
        case "progress":
            said = request.progress
            rounds = said.rounds if said.HasField("rounds") else None
            stream.progress(said.step, _phase_of(said.phase), rounds)
        case "abandoned":
            stream.abandon(request.abandoned.quorum_id, request.abandoned.cause[:_MAX_TEXT_CHARS])
        case "saved":
            stream.saved(_saved_of(request.saved))
        case "save_failed":
            stream.save_failed(*_failure_of(request.save_failed))
        case "goodbye":
            _say_goodbye(stream, request.goodbye)
            return True
    return False


def _say_goodbye(stream: Stream, message: pb.Goodbye) -> None:
    if not message.may_save_s >= 0:
        raise ValueError("malformed Goodbye: may_save_s must be at least 0")
    may_save_s = min(message.may_save_s, _MAX_SAVE_S)
    if not stream.goodbye(finished=message.finished, step=message.step, may_save_s=may_save_s):
        raise StreamError(grpc.StatusCode.UNAVAILABLE, "the end of the job could not be written down")


def _saved_of(message: pb.Saved) -> Saved:
    return Saved(
        step=message.step,
        quorum_id=message.quorum_id,
        bytes=message.bytes,
        seconds=message.seconds,
        age_s=message.age_s,
    )


def _failure_of(message: pb.SaveFailed) -> tuple[int, str]:
    if not 0 <= message.step < LARGEST_NUMBER:
        raise ValueError("malformed SaveFailed: step must be at least 0")
    return message.step, message.cause[:_MAX_TEXT_CHARS]


def _notice_message(notice: Notice) -> pb.Notice:
    kind = pb.NoticeKind.Name(notice.kind)
    return pb.Notice(kind=kind, quorum_id=notice.quorum_id, cause=notice.cause)


def _phase_of(number: int) -> Phase:
    """A phase that this version does not know counts as unspecified."""
    return Phase(number) if number in Phase.__members__.values() else Phase.UNSPECIFIED
