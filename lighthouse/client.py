"""The Lighthouse seen from the other side, for programs without an event loop.

Everything that a client needs is imported from here.
"""

import json
from collections.abc import Callable
from typing import Any

import grpc

from lighthouse.address import parse_address
from lighthouse.attach import AttachStream
from lighthouse.channel import (
    LighthouseError,
    RefusedError,
    UnreachableError,
    error_of,
    open_channel,
    wait_until_reachable,
)
from lighthouse.model import JOB_NAME_RULE, Hello, Phase, StartMode, Welcome, is_job_name
from protos import lighthouse_pb2 as pb

__all__ = [
    "AttachStream",
    "Hello",
    "LighthouseError",
    "Phase",
    "RefusedError",
    "StartMode",
    "UnreachableError",
    "Welcome",
    "forget",
    "is_job_name",
    "parse_address",
    "status",
    "wait_until_reachable",
]

_SERVICE = "/headway.lighthouse.v1.LighthouseService/"
CALL_TIMEOUT_S = 10.0


def status(address: str, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
    """The status document of the Lighthouse at `h:p`. Blocks; raises LighthouseError."""
    reply = _call(address, "Status", pb.StatusRequest(), pb.StatusResponse.FromString, timeout_s)
    document: dict[str, Any] = json.loads(reply.json)
    return document


def forget(address: str, job: str, timeout_s: float = CALL_TIMEOUT_S) -> bool:
    """Have a job dropped from the record; whether it was known.

    Blocks. Raises ValueError for a name that no job can have, and LighthouseError when groups of
    the job live or nobody answers.
    """
    if not is_job_name(job):
        raise ValueError(f"malformed job name {job!r}: want {JOB_NAME_RULE}")
    reply = _call(address, "Forget", pb.ForgetRequest(job=job), pb.ForgetResponse.FromString, timeout_s)
    return bool(reply.known)


def _call(
    address: str, method: str, request: Any, deserializer: Callable[[bytes], Any], timeout_s: float
) -> Any:
    with open_channel(address) as channel:
        call = channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=deserializer,
        )
        try:
            return call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of(address, error) from None
