"""What members of a quorum tell each other when they meet, as a message of fixed length. Pure."""

import struct

from replica.rounds import MAX_ROUNDS, Peer, as_mask, from_mask

MAX_ADDRESS_BYTES = 256
_FORM = struct.Struct(f"<qqq{MAX_ROUNDS // 8}s{MAX_ADDRESS_BYTES}s")
MESSAGE_BYTES = _FORM.size


def encode(peer: Peer, signature: int) -> bytes:
    """`peer` and a hash of what it trains (63 bits), in MESSAGE_BYTES bytes.

    Raises ValueError for an address of more than MAX_ADDRESS_BYTES bytes.
    """
    address = peer.address.encode()
    if len(address) > MAX_ADDRESS_BYTES:
        raise ValueError(f"the address {peer.address[:60]}... is longer than {MAX_ADDRESS_BYTES} bytes")
    return _FORM.pack(peer.group, peer.step, signature, as_mask(peer.held), address)


def decode(message: bytes) -> tuple[Peer, int]:
    """A peer and its signature from what `encode` made. Raises struct.error for another length."""
    group, step, signature, mask, address = _FORM.unpack(message)
    text = address.rstrip(b"\0").decode(errors="replace")
    return Peer(group=group, step=step, held=from_mask(mask), address=text), signature
