"""torchft's messages: fields that we do not know reach the other members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.model import Quorum
from lighthouse.wire import decode, encode_reply, member_of
from protos import torchft_pb2

# Field 100, length-delimited: what a newer client might send.
UNKNOWN = b"\xa2\x06\x03new"


def asking(**fields: object) -> bytes:
    return request(**fields).SerializeToString()


def request(**fields: object) -> torchft_pb2.LighthouseQuorumRequest:
    message = torchft_pb2.QuorumMember(**fields)  # type: ignore[arg-type]
    return torchft_pb2.LighthouseQuorumRequest(requester=message)


def test_a_member_is_read() -> None:
    member = member_of(
        asking(
            replica_id="job/2:u",
            address="http://h:1",
            store_address="h:2",
            step=5,
            world_size=4,
            shrink_only=True,
            commit_failures=3,
        )
    )
    assert (member.id.job, member.id.key) == ("job", 2)
    assert member.place() == ("job/2:u", "http://h:1", "h:2", 4)
    assert (member.step, member.shrink_only, member.commit_failures) == (5, True, 3)


def test_the_reply_carries_members_whole_and_in_order() -> None:
    first = request(replica_id="job/0:a", data='{"k": 1}')
    first.requester.MergeFromString(UNKNOWN)
    second = request(replica_id="job/1:b", step=7)
    quorum = Quorum(
        quorum_id=9, members=(member_of(first.SerializeToString()), member_of(second.SerializeToString()))
    )
    reply = torchft_pb2.LighthouseQuorumResponse.FromString(encode_reply(quorum, 12.5))
    assert reply.quorum.quorum_id == 9
    assert (reply.quorum.created.seconds, reply.quorum.created.nanos) == (12, 500_000_000)
    sent = [member.SerializeToString() for member in reply.quorum.participants]
    assert sent == [first.requester.SerializeToString(), second.requester.SerializeToString()]
    assert sent[0].endswith(UNKNOWN)


def test_a_request_without_a_requester_is_refused() -> None:
    with pytest.raises(ValueError, match="requester is missing"):
        member_of(b"")
    with pytest.raises(ValueError, match="malformed replica id"):
        member_of(asking(replica_id=""))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_member_or_one_sentence(data: bytes) -> None:
    try:
        member = member_of(data)
    except ValueError as error:
        caught = str(error)
    else:
        caught = f"malformed {member.id.text}"
    assert caught.startswith("malformed")
    assert "\n" not in caught


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(ValueError, match="this is no LighthouseHeartbeatRequest"):
        decode(torchft_pb2.LighthouseHeartbeatRequest, b"\xff" * 9)
