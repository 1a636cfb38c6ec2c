"""What members tell each other when they meet: the same after the way over the wire."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.introduction import MAX_ADDRESS_BYTES, MESSAGE_BYTES, decode, encode
from replica.rounds import MAX_ROUNDS, Peer

PEERS = st.builds(
    Peer,
    group=st.integers(0, 2**31),
    step=st.integers(0, 2**62),
    held=st.frozensets(st.integers(0, MAX_ROUNDS - 1), max_size=20),
    address=st.sampled_from(["", "10.0.0.1:29400", "[fe80::1]:1", "host.example:65535"]),
)


@given(peer=PEERS, signature=st.integers(0, 2**63 - 1))
def test_a_peer_survives_the_wire_in_a_message_of_fixed_length(peer: Peer, signature: int) -> None:
    message = encode(peer, signature)
    assert len(message) == MESSAGE_BYTES
    assert decode(message) == (peer, signature)


def test_an_address_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="is longer than"):
        encode(Peer(group=0, step=0, address="x" * (MAX_ADDRESS_BYTES + 1)), 0)


def test_a_message_of_another_length_is_not_read() -> None:
    with pytest.raises(struct.error):
        decode(encode(Peer(group=0, step=0), 0)[:-1])


@given(noise=st.binary(min_size=MESSAGE_BYTES, max_size=MESSAGE_BYTES))
def test_noise_is_read_as_a_peer_that_nobody_knows(noise: bytes) -> None:
    peer, _ = decode(noise)
    assert all(0 <= index < MAX_ROUNDS for index in peer.held)
