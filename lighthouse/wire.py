"""torchft's messages and our own nouns: from one to the other and back."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from lighthouse.model import Member, Quorum, parse_replica_id
from protos import torchft_pb2

M = TypeVar("M", bound=Message)


def decode(kind: type[M], data: bytes) -> M:
    """Read a message of this kind. Raises ValueError with one sentence if it is none."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ValueError(f"malformed message: this is no {kind.__name__}") from None
    return message


def member_of(data: bytes) -> Member:
    """Who asks, from an encoded LighthouseQuorumRequest.

    Raises ValueError with one sentence if the message names nobody properly.
    """
    request = decode(torchft_pb2.LighthouseQuorumRequest, data)
    if not request.HasField("requester"):
        raise ValueError("malformed request: the requester is missing")
    message = request.requester
    return Member(
        id=parse_replica_id(message.replica_id),
        address=message.address,
        store_address=message.store_address,
        step=message.step,
        world_size=message.world_size,
        shrink_only=message.shrink_only,
        commit_failures=message.commit_failures,
        wire=message.SerializeToString(),
    )


def encode_reply(quorum: Quorum, wall_s: float) -> bytes:
    """The reply that all members of a quorum get; `wall_s` is when it was made.

    Each member's message goes through whole, with the fields that this version does not know.
    """
    created = Timestamp()
    created.FromNanoseconds(int(wall_s * 1e9))
    message = torchft_pb2.Quorum(quorum_id=quorum.quorum_id, created=created)
    for member in quorum.members:
        message.participants.add().MergeFromString(member.wire)
    return torchft_pb2.LighthouseQuorumResponse(quorum=message).SerializeToString()
