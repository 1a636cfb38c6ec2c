"""Messages and nouns: from one to the other and back."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from lighthouse.model import (
    POOL,
    ColdStart,
    ColdStartAnswer,
    Member,
    Quorum,
    ReplicaId,
    SaveOffer,
    SavesFound,
    parse_replica_id,
)
from protos import lighthouse_pb2, torchft_pb2

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


def proposal_of(message: lighthouse_pb2.ProposeSaveRequest) -> tuple[ReplicaId, SavesFound | None]:
    """Who asks how to start, and what it has found if it has looked for saves.

    Raises ValueError with one sentence if that makes no sense.
    """
    id = parse_replica_id(message.replica_id)
    if id.job == POOL:
        raise ValueError("malformed replica id: a save is proposed by a group of a job, JOB/GROUP:UUID")
    if not message.looked:
        if message.HasField("save"):
            raise ValueError("malformed request: a save is offered without having looked for one")
        return id, None
    save, offer = message.save, None
    if message.HasField("save"):
        offer = SaveOffer(name=save.name, step=save.step, quorum_id=save.quorum_id)
    found = SavesFound(offer=offer, highest_quorum_id=message.highest_quorum_id, unusable=message.unusable)
    return id, found


def proposal_message(replica_id: str, found: SavesFound | None) -> lighthouse_pb2.ProposeSaveRequest:
    """What a group says that asks how to start."""
    if found is None:
        return lighthouse_pb2.ProposeSaveRequest(replica_id=replica_id)
    save, offer = None, found.offer
    if offer is not None:
        save = lighthouse_pb2.SaveOffer(name=offer.name, step=offer.step, quorum_id=offer.quorum_id)
    return lighthouse_pb2.ProposeSaveRequest(
        replica_id=replica_id,
        looked=True,
        save=save,
        highest_quorum_id=found.highest_quorum_id,
        unusable=found.unusable,
    )


def cold_start_message(answer: ColdStartAnswer) -> lighthouse_pb2.ProposeSaveResponse:
    """What a group is told that asks how to start."""
    save = None
    if answer.save is not None:
        offer = answer.save
        save = lighthouse_pb2.SaveOffer(name=offer.name, step=offer.step, quorum_id=offer.quorum_id)
    verdict = lighthouse_pb2.ColdStart.Name(answer.verdict)
    return lighthouse_pb2.ProposeSaveResponse(verdict=verdict, save=save, cause=answer.cause)


def cold_start_of(message: lighthouse_pb2.ProposeSaveResponse) -> ColdStartAnswer:
    """The same, read back. Raises ValueError if it makes no sense, or to a later version only."""
    verdict, save = ColdStart(int(message.verdict)), None
    if verdict is ColdStart.RESTORE:
        found = message.save
        save = SaveOffer(name=found.name, step=found.step, quorum_id=found.quorum_id)
    return ColdStartAnswer(verdict=verdict, save=save, cause=message.cause)
