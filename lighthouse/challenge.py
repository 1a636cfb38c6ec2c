"""Proof that a caller holds the token, which is never sent: the server's nonce, and an answer to it. Pure.

Nonces are signed by the server and not remembered until they are used, so that strangers, who cannot
use them, cost no memory.
"""

import hashlib
import hmac
import struct

NONCE_LIFE_S = 30.0
MAX_SPENT = 65_536
KEY_BYTES = 32
SALT_BYTES = 16
_MADE = struct.Struct("!d")
_SIGNATURE_BYTES = 16
_NONCE_BYTES = _MADE.size + SALT_BYTES + _SIGNATURE_BYTES


def proof_of(token: bytes, *, method: str, nonce: bytes) -> bytes:
    """What only a caller with the token can answer to this nonce, for a call of this method (32 bytes)."""
    return hmac.digest(token, b"headway lighthouse " + method.encode() + b" " + nonce, hashlib.sha256)


def credentials(token: bytes, *, method: str, nonce: bytes) -> str:
    """The value of the metadata `authorization` for one call."""
    return f"Headway {nonce.hex()} {proof_of(token, method=method, nonce=nonce).hex()}"


def read_credentials(text: str) -> tuple[bytes, bytes] | None:
    """Nonce and proof in a value that `credentials` made, or None if it is no such value."""
    words = text.split(" ")
    if len(words) != 3 or words[0] != "Headway":
        return None
    try:
        return bytes.fromhex(words[1]), bytes.fromhex(words[2])
    except ValueError:
        return None


class Nonces:
    """Reads like a cloakroom: tickets that cannot be forged, each of them good once. Time is handed in."""

    def __init__(self, key: bytes) -> None:
        """`key`: KEY_BYTES of randomness that nobody else knows."""
        self._key = key
        self._spent: dict[bytes, float] = {}

    def issue(self, salt: bytes, now_s: float) -> bytes:
        """A fresh nonce; `salt`: SALT_BYTES of randomness."""
        body = _MADE.pack(now_s) + salt
        return body + self._sign(body)

    def is_good(self, nonce: bytes, now_s: float) -> bool:
        """Whether it is one of these, not too old, and not used yet."""
        if len(nonce) != _NONCE_BYTES or nonce in self._spent:
            return False
        body = nonce[:-_SIGNATURE_BYTES]
        if not hmac.compare_digest(nonce[-_SIGNATURE_BYTES:], self._sign(body)):
            return False
        return now_s - _made_s(nonce) <= NONCE_LIFE_S

    def spend(self, nonce: bytes, now_s: float) -> bool:
        """Use up a good nonce. False: so many are used up that there is no room for it now."""
        while self._spent and now_s - self._spent[oldest := next(iter(self._spent))] > NONCE_LIFE_S:
            del self._spent[oldest]
        if len(self._spent) >= MAX_SPENT:
            return False
        self._spent[nonce] = _made_s(nonce)
        return True

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, hashlib.sha256)[:_SIGNATURE_BYTES]


def _made_s(nonce: bytes) -> float:
    made_s: float = _MADE.unpack_from(nonce)[0]
    return made_s
