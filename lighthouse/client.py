"""The Lighthouse seen from the other side, for programs without an event loop.

Everything that a client needs is imported from here.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from lighthouse.access import OPEN, SERVICE, Access, demands_token, entering, wrong_port
from lighthouse.address import parse_address
from lighthouse.attach import AttachStream, WatchStream
from lighthouse.channel import (
    LighthouseError,
    LockedOutError,
    RefusedError,
    UnreachableError,
    error_of,
    wait_until_reachable,
)
from lighthouse.lag import RoundTimes
from lighthouse.model import (
    JOB_NAME_RULE,
    ColdStart,
    ColdStartAnswer,
    Hello,
    Notice,
    NoticeKind,
    Phase,
    SaveOffer,
    SavesFound,
    StartMode,
    Welcome,
    is_job_name,
)
from lighthouse.slot import SlotState
from lighthouse.wire import cold_start_of, proposal_message
from protos import lighthouse_pb2 as pb

__all__ = [
    "OPEN",
    "Access",
    "AttachStream",
    "ColdStart",
    "ColdStartAnswer",
    "Hello",
    "LighthouseError",
    "LockedOutError",
    "Notice",
    "NoticeKind",
    "Phase",
    "RefusedError",
    "RoundTimes",
    "SaveOffer",
    "SavesFound",
    "SlotState",
    "StartMode",
    "UnreachableError",
    "WatchStream",
    "Welcome",
    "check_may_drain",
    "demands_token",
    "drain",
    "evict",
    "forget",
    "is_job_name",
    "leave",
    "parse_address",
    "propose_save",
    "status",
    "wait_until_reachable",
    "watch_events",
    "wrong_port",
]

CALL_TIMEOUT_S = 10.0
# The largest number that the wire holds, which no group has.
_NOBODY = (1 << 32) - 1
# A nonce can go stale between two calls, when the server is started again.
_TRIES = 3


def status(address: str, timeout_s: float = CALL_TIMEOUT_S, *, access: Access = OPEN) -> dict[str, Any]:
    """The status document of the Lighthouse at `h:p`. Blocks; raises LighthouseError."""
    reply = _call(address, "Status", pb.StatusRequest(), pb.StatusResponse.FromString, timeout_s, access)
    document: dict[str, Any] = json.loads(reply.json)
    return document


def watch_events(address: str, job: str = "", *, access: Access = OPEN) -> Iterator[dict[str, Any]]:
    """Events of a job, or of all, as they happen: `{"t": seconds since 1970, "kind", "job", ...}`.

    Each step of the iterator blocks until there is one; closing it ends the call. It ends when the
    server goes down as planned. Raises LighthouseError when nobody answers or the call breaks.
    """
    with entering(address, "WatchEvents", access) as entry:
        method = entry.channel.unary_stream(
            SERVICE + "WatchEvents",
            request_serializer=pb.WatchEventsRequest.SerializeToString,
            response_deserializer=pb.WatchEventsResponse.FromString,
        )
        call = method(pb.WatchEventsRequest(job=job), metadata=entry.metadata)
        try:
            for response in call:
                yield json.loads(response.json)
        except grpc.RpcError as error:
            raise error_of(address, error) from None
        finally:
            call.cancel()


def evict(
    address: str, job: str, group: int, timeout_s: float = CALL_TIMEOUT_S, *, access: Access = OPEN
) -> bool:
    """Have a group counted out now; its processes end themselves. Whether it was there.

    Blocks. Raises ValueError for names that cannot be, and LighthouseError when nobody answers or
    the Lighthouse cannot write it down; then nothing was done.
    """
    _check_names(job, group)
    request = pb.EvictRequest(job=job, group=group)
    return bool(_call(address, "Evict", request, pb.EvictResponse.FromString, timeout_s, access).known)


def drain(
    address: str, job: str, group: int, timeout_s: float = CALL_TIMEOUT_S, *, access: Access = OPEN
) -> bool:
    """Have a group asked to leave at the end of its step. Whether it is there to be asked.

    Blocks. Raises ValueError for names that cannot be, and LighthouseError when nobody answers.
    """
    _check_names(job, group)
    request = pb.DrainRequest(job=job, group=group)
    return bool(_call(address, "Drain", request, pb.DrainResponse.FromString, timeout_s, access).known)


def check_may_drain(
    address: str, job: str, timeout_s: float = CALL_TIMEOUT_S, *, access: Access = OPEN
) -> None:
    """Find out whether a drain by this caller would be let through; nobody is drained.

    Blocks. Raises RefusedError if not, and another LighthouseError when nobody answers.
    """
    request = pb.DrainRequest(job=job, group=_NOBODY)
    _call(address, "Drain", request, pb.DrainResponse.FromString, timeout_s, access)


def leave(address: str, replica_id: str, timeout_s: float = CALL_TIMEOUT_S, *, access: Access = OPEN) -> bool:
    """Say goodbye for an incarnation that holds no stream. Whether it was known.

    For one that has said goodbye: it saves nothing any more, and nobody need wait for it. Blocks.
    Raises LighthouseError when nobody answers.
    """
    request = pb.LeaveRequest(replica_id=replica_id)
    return bool(_call(address, "Leave", request, pb.LeaveResponse.FromString, timeout_s, access).known)


def propose_save(
    address: str,
    replica_id: str,
    found: SavesFound | None,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    access: Access = OPEN,
) -> ColdStartAnswer:
    """Ask what a group is to do when nobody may be left from whom it could heal.

    `found`: what it has seen if it has looked for saves. After WAIT and LOOK it asks again. Blocks.
    Raises UnreachableError when nobody answers or the decision cannot be written down, and then
    nothing was decided: ask again. Raises RefusedError for an incarnation that may not come back or
    is not attached.
    """
    request = proposal_message(replica_id, found)
    reply = _call(address, "ProposeSave", request, pb.ProposeSaveResponse.FromString, timeout_s, access)
    try:
        return cold_start_of(reply)
    except ValueError:
        raise RefusedError(f"the Lighthouse at {address} speaks of what this version does not know") from None


def forget(address: str, job: str, timeout_s: float = CALL_TIMEOUT_S, *, access: Access = OPEN) -> bool:
    """Have a job dropped from the record; whether it was known.

    Blocks. Raises ValueError for a name that no job can have, and LighthouseError when groups of
    the job live or nobody answers.
    """
    _check_names(job)
    reply = _call(
        address, "Forget", pb.ForgetRequest(job=job), pb.ForgetResponse.FromString, timeout_s, access
    )
    return bool(reply.known)


def _check_names(job: str, group: int = 0) -> None:
    if not is_job_name(job):
        raise ValueError(f"malformed job name {job!r}: want {JOB_NAME_RULE}")
    if not 0 <= group < 2**32:
        raise ValueError(f"malformed group number {group}: groups are numbered from 0")


def _call(
    address: str,
    method: str,
    request: Any,
    deserializer: Callable[[bytes], Any],
    timeout_s: float,
    access: Access,
) -> Any:
    for attempt in range(_TRIES):
        with entering(address, method, access, timeout_s=timeout_s) as entry:
            call = entry.channel.unary_unary(
                SERVICE + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=deserializer,
            )
            try:
                return call(request, timeout=timeout_s, metadata=entry.metadata)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.ABORTED or attempt == _TRIES - 1:
                    raise error_of(address, error) from None
    raise AssertionError("the last try has ended in one way or the other")
