"""Messages: what is written is read back, any bytes are a message or told why not, proofs need the token."""

import pickle
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.transfer.wire import (
    HEADER_BYTES,
    MAGIC,
    MAX_DETAIL_BYTES,
    VERSION,
    AskChunk,
    AskManifest,
    Auth,
    ChunkIs,
    Code,
    Done,
    Header,
    Hello,
    Kind,
    Malformed,
    ManifestIs,
    Message,
    Refusal,
    Said,
    Welcome,
    decode,
    decode_header,
    donor_proof,
    encode,
    joiner_proof,
    proves,
)

B16, B32 = st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32)
U32 = st.integers(0, 2**32 - 1)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, nonce=B32),
    st.builds(Auth, joiner=B16, nonce=B32, proof=B32),
    st.builds(Welcome, proof=B32),
    st.builds(AskManifest, step=st.integers(0, 2**63 - 1)),
    st.builds(ManifestIs, body=st.binary(max_size=100)),
    st.builds(AskChunk, state_id=B16, chunk=U32),
    st.builds(ChunkIs, chunk=U32, nbytes=st.integers(1, 1 << 28)),
    st.builds(Done, state_id=B16),
    st.builds(Refusal, code=st.sampled_from(Code), detail=st.text("abc é", max_size=50)),
)


def read(frame: bytes) -> Message | Malformed:
    header = decode_header(frame[:HEADER_BYTES], max_manifest_bytes=100)
    if isinstance(header, Malformed):
        return header
    assert len(frame) == HEADER_BYTES + header.nbytes
    return decode(header, frame[HEADER_BYTES:])


@given(MESSAGES)
def test_what_is_written_is_read_back(message: Message) -> None:
    assert read(encode(message)) == message


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_bytes_are_no_header(header: bytes) -> None:
    assert isinstance(decode_header(header), Malformed) or header.startswith(MAGIC)


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.data())
def test_a_payload_is_bounded_and_told_apart(kind: Kind, nbytes: int, data: st.DataObject) -> None:
    header = decode_header(struct.pack("!4sBBI", MAGIC, VERSION, kind, nbytes), max_manifest_bytes=500)
    if isinstance(header, Malformed):
        assert header.reason
        return
    assert header.nbytes <= 501
    payload = data.draw(st.binary(min_size=header.nbytes, max_size=header.nbytes))
    assert decode(header, payload) is not None


@given(st.sampled_from([k for k in Kind if k not in (Kind.MANIFEST, Kind.REFUSAL)]), st.data())
def test_any_payload_of_the_right_length_is_read_or_refused(kind: Kind, data: st.DataObject) -> None:
    sizes = {len(encode(m)) - HEADER_BYTES for m in data.draw(st.lists(MESSAGES, min_size=1, max_size=5))}
    for size in sizes:
        header = decode_header(struct.pack("!4sBBI", MAGIC, VERSION, kind, size))
        if isinstance(header, Header):
            assert decode(header, data.draw(st.binary(min_size=size, max_size=size))) is not None


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (pickle.dumps(object)[:HEADER_BYTES], "not the transfer's protocol"),
        (b"GET /check", "not the transfer's protocol"),
        (struct.pack("!4sBBI", MAGIC, 9, Kind.HELLO, 32), "version 9 of the protocol, 1 is spoken here"),
        (struct.pack("!4sBBI", MAGIC, VERSION, 77, 0), "kind 77"),
        (struct.pack("!4sBBI", MAGIC, VERSION, Kind.HELLO, 33), "HELLO with 33 bytes"),
        (struct.pack("!4sBBI", MAGIC, VERSION, Kind.MANIFEST, 101), "at most 100"),
        (struct.pack("!4sBBI", MAGIC, VERSION, Kind.REFUSAL, 0), "REFUSAL with 0 bytes"),
        (struct.pack("!4sBBI", MAGIC, VERSION, Kind.REFUSAL, MAX_DETAIL_BYTES + 2), "REFUSAL with"),
    ],
)
def test_a_bad_header_is_told(header: bytes, words: str) -> None:
    found = decode_header(header, max_manifest_bytes=100)
    assert isinstance(found, Malformed)
    assert words in found.reason


def test_a_refusal_cannot_steer_a_terminal_or_grow() -> None:
    frame = encode(Refusal(code=Code.GONE, detail="\x1b[2J" + "é" * 1000))
    found = read(frame)
    assert isinstance(found, Refusal)
    assert found.detail.startswith("?[2Jé")
    assert len(frame) == HEADER_BYTES + 1 + MAX_DETAIL_BYTES
    assert read(struct.pack("!4sBBIB", MAGIC, VERSION, Kind.REFUSAL, 1, 99)) == Malformed(
        reason="refusal 99 does not exist"
    )


@pytest.mark.parametrize("nbytes", [0, (1 << 28) + 1])
def test_a_chunk_has_a_size_that_can_be(nbytes: int) -> None:
    assert isinstance(read(encode(ChunkIs(chunk=1, nbytes=nbytes))), Malformed)


@given(st.binary(max_size=20), st.binary(max_size=20), B32, B32, B16)
def test_a_proof_needs_the_token_both_nonces_and_the_channel(
    token: bytes, other: bytes, donor: bytes, joiner: bytes, name: bytes
) -> None:
    told = Said(donor_nonce=donor, joiner_nonce=joiner, joiner=name)
    proof = joiner_proof(token, told)
    assert proves(proof, joiner_proof(token, told))
    # HMAC pads a key with zeros: keys that differ only in zeros at their end are one key.
    same = token.rstrip(b"\0") == other.rstrip(b"\0")
    assert proves(proof, joiner_proof(other, told)) == same
    assert not proves(proof, donor_proof(token, told))
    flipped = bytes([donor[0] ^ 1]) + donor[1:]
    assert not proves(proof, joiner_proof(token, replace(told, donor_nonce=flipped)))
    assert not proves(proof, joiner_proof(token, replace(told, channel=donor)))
