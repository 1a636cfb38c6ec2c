"""Messages and nouns: unknown fields reach the other members, and nonsense is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.model import ColdStart, ColdStartAnswer, Quorum, SaveOffer, SavesFound
from lighthouse.wire import (
    cold_start_message,
    cold_start_of,
    decode,
    encode_reply,
    member_of,
    proposal_message,
    proposal_of,
)
from protos import lighthouse_pb2, torchft_pb2

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


SAVE = SaveOffer(name="step-7", step=7, quorum_id=1)


def test_a_proposal_is_read() -> None:
    save = lighthouse_pb2.SaveOffer(name="step-7", step=7, quorum_id=1)
    request = lighthouse_pb2.ProposeSaveRequest(replica_id="job/2:u", looked=True, save=save)
    id, found = proposal_of(request)
    assert (id.text, found) == ("job/2:u", SavesFound(offer=SAVE))
    request.ClearField("save")
    assert proposal_of(request)[1] == SavesFound()
    request.looked = False
    assert proposal_of(request)[1] is None


@pytest.mark.parametrize(
    "found",
    [
        None,
        SavesFound(),
        SavesFound(offer=SAVE, highest_quorum_id=9),
        SavesFound(highest_quorum_id=2**62 - 1, unusable=True),
    ],
)
def test_what_was_found_comes_through_as_it_was_said(found: SavesFound | None) -> None:
    message = decode(
        lighthouse_pb2.ProposeSaveRequest, proposal_message("job/2:u", found).SerializeToString()
    )
    id, read = proposal_of(message)
    assert (id.text, read) == ("job/2:u", found)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"replica_id": "pool"}, "a group of a job"),
        ({"replica_id": "job/2"}, "malformed replica id"),
        ({"save": {"name": "x"}, "looked": False}, "without having looked"),
        ({"save": {"name": "x" * 201}}, "malformed name of a save"),
        ({"save": {"name": "a/b"}}, "malformed name of a save"),
        ({"save": {"name": "a\n"}}, "malformed name of a save"),
        ({"save": {"name": "x", "step": -1}}, "malformed save"),
        ({"save": {"name": "x", "quorum_id": 2**62}}, "malformed save"),
        ({"highest_quorum_id": 2**62}, "highest_quorum_id"),
        ({"highest_quorum_id": -1}, "highest_quorum_id"),
    ],
)
def test_a_proposal_that_makes_no_sense_is_refused(fields: dict[str, object], why: str) -> None:
    request = lighthouse_pb2.ProposeSaveRequest(**({"replica_id": "job/2:u", "looked": True} | fields))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=why):
        proposal_of(request)


@pytest.mark.parametrize("verdict", ColdStart)
def test_an_answer_comes_back_as_it_was_given(verdict: ColdStart) -> None:
    save = SAVE if verdict is ColdStart.RESTORE else None
    answer = ColdStartAnswer(verdict=verdict, save=save, cause="why")
    assert cold_start_of(cold_start_message(answer)) == answer


def test_an_answer_of_a_later_version_is_not_understood() -> None:
    message = lighthouse_pb2.ProposeSaveResponse(verdict=99)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="99"):
        cold_start_of(message)
    with pytest.raises(ValueError, match="malformed name"):
        cold_start_of(lighthouse_pb2.ProposeSaveResponse(verdict=lighthouse_pb2.COLD_START_RESTORE))
