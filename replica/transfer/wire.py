"""What donor and joiner say to each other, as framed bytes of bounded size. Pure.

A frame is a magic number, a version, a kind, the length of its payload, and the payload. The donor
speaks first, with a nonce. The joiner answers with a nonce of its own and the proof that it holds
the job's token; the donor proves the same. Then the joiner asks and the donor answers, in turn. The
bytes of a chunk follow their frame as they are.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum, unique

from replica.transfer.manifest import MAX_CHUNK_BYTES, STATE_ID_BYTES

MAGIC = b"HWXF"
VERSION = 1
NONCE_BYTES = 32
JOINER_BYTES = 16
PROOF_BYTES = 32
MAX_DETAIL_BYTES = 400
_HEADER = struct.Struct("!4sBBI")
HEADER_BYTES = _HEADER.size


@unique
class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    AUTH = 2
    WELCOME = 3
    ASK_MANIFEST = 4
    MANIFEST = 5
    ASK_CHUNK = 6
    CHUNK = 7
    DONE = 8
    REFUSAL = 9


@unique
class Code(IntEnum):
    """Why a donor does not give what it was asked for."""

    NOT_STAGED = 1  # ask again
    WRONG_STEP = 2  # it has a newer step
    GONE = 3  # that state is no longer there
    REFUSED = 4  # the token is not the job's
    MALFORMED = 5
    BUSY = 6  # too many connections: ask again


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """The donor's first word."""

    nonce: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Auth:
    """The joiner's first word: who it is, its nonce, and its proof of the token."""

    joiner: bytes
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """The donor's proof of the token."""

    proof: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class AskManifest:
    """Asks for the manifest of a step."""

    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestIs:
    """The manifest, not decoded yet."""

    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class AskChunk:
    """Asks for one chunk of a state."""

    state_id: bytes
    chunk: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkIs:
    """`nbytes` bytes of this chunk follow the frame."""

    chunk: int
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The joiner has all of this state, from whomever, and asks no more. It gets no answer."""

    state_id: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """What was asked for cannot be given; `detail` says why, in words."""

    code: Code
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Malformed:
    """Bytes that are no message, and why, in words."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A frame that is about to come: `nbytes` of payload."""

    kind: Kind
    nbytes: int


Message = Hello | Auth | Welcome | AskManifest | ManifestIs | AskChunk | ChunkIs | Done | Refusal

_FIXED = {
    Kind.HELLO: struct.Struct(f"!{NONCE_BYTES}s"),
    Kind.AUTH: struct.Struct(f"!{JOINER_BYTES}s{NONCE_BYTES}s{PROOF_BYTES}s"),
    Kind.WELCOME: struct.Struct(f"!{PROOF_BYTES}s"),
    Kind.ASK_MANIFEST: struct.Struct("!Q"),
    Kind.ASK_CHUNK: struct.Struct(f"!{STATE_ID_BYTES}sI"),
    Kind.CHUNK: struct.Struct("!II"),
    Kind.DONE: struct.Struct(f"!{STATE_ID_BYTES}s"),
}
_REFUSAL_CODE = struct.Struct("!B")


def encode(message: Message) -> bytes:
    """A message as one frame."""
    kind, payload = _payload(message)
    return _HEADER.pack(MAGIC, VERSION, kind, len(payload)) + payload


def decode_header(header: bytes, *, max_manifest_bytes: int = 0) -> Header | Malformed:
    """Read the first HEADER_BYTES bytes of a frame; a payload longer than its kind allows is refused."""
    magic, version, number, nbytes = _HEADER.unpack(header)
    if magic != MAGIC:
        return Malformed(reason="this is not the transfer's protocol")
    if version != VERSION:
        return Malformed(reason=f"version {version} of the protocol, {VERSION} is spoken here")
    try:
        kind = Kind(number)
    except ValueError:
        return Malformed(reason=f"kind {number} does not exist")
    fixed = _FIXED.get(kind)
    if fixed is not None and nbytes != fixed.size:
        return Malformed(reason=f"{kind.name} with {nbytes} bytes")
    if kind is Kind.MANIFEST and nbytes > max_manifest_bytes:
        return Malformed(reason=f"a manifest of {nbytes} bytes, at most {max_manifest_bytes} are taken")
    if kind is Kind.REFUSAL and not _REFUSAL_CODE.size <= nbytes <= _REFUSAL_CODE.size + MAX_DETAIL_BYTES:
        return Malformed(reason=f"{kind.name} with {nbytes} bytes")
    return Header(kind=kind, nbytes=nbytes)


def decode(header: Header, payload: bytes) -> Message | Malformed:
    """Read the payload of a frame, of exactly the length that its header gave."""
    if header.kind is Kind.MANIFEST:
        return ManifestIs(body=payload)
    if header.kind is Kind.REFUSAL:
        return _refusal(payload)
    fields = _FIXED[header.kind].unpack(payload)
    match header.kind:
        case Kind.HELLO:
            return Hello(nonce=fields[0])
        case Kind.AUTH:
            return Auth(joiner=fields[0], nonce=fields[1], proof=fields[2])
        case Kind.WELCOME:
            return Welcome(proof=fields[0])
        case Kind.ASK_MANIFEST:
            return AskManifest(step=fields[0])
        case Kind.ASK_CHUNK:
            return AskChunk(state_id=fields[0], chunk=fields[1])
        case Kind.CHUNK:
            if not 0 < fields[1] <= MAX_CHUNK_BYTES:
                return Malformed(reason=f"a chunk of {fields[1]} bytes")
            return ChunkIs(chunk=fields[0], nbytes=fields[1])
        case Kind.DONE:
            return Done(state_id=fields[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What both sides know of each other when one of them proves that it holds the token.

    `channel` is what the connection is secured with, so that nobody in between can pass a proof on.
    """

    donor_nonce: bytes
    joiner_nonce: bytes
    joiner: bytes
    channel: bytes = b""


def joiner_proof(token: bytes, said: Said) -> bytes:
    """What only a joiner with the token can say to a donor with this nonce."""
    return _proof(token, b"joiner", said)


def donor_proof(token: bytes, said: Said) -> bytes:
    """What only a donor with the token can answer to a joiner with this nonce."""
    return _proof(token, b"donor", said)


def proves(proof: bytes, expected: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(proof, expected)


def _proof(token: bytes, role: bytes, said: Said) -> bytes:
    # All parts have fixed lengths but the role, which comes first and is no prefix of the other, and
    # the channel, which comes last.
    parts = said.donor_nonce + said.joiner_nonce + said.joiner + said.channel
    return hmac.digest(token, b"headway transfer " + role + parts, hashlib.sha256)


def _payload(message: Message) -> tuple[Kind, bytes]:
    match message:
        case Hello():
            return Kind.HELLO, message.nonce
        case Auth():
            return Kind.AUTH, message.joiner + message.nonce + message.proof
        case Welcome():
            return Kind.WELCOME, message.proof
        case AskManifest():
            return Kind.ASK_MANIFEST, _FIXED[Kind.ASK_MANIFEST].pack(message.step)
        case ManifestIs():
            return Kind.MANIFEST, message.body
        case AskChunk():
            return Kind.ASK_CHUNK, _FIXED[Kind.ASK_CHUNK].pack(message.state_id, message.chunk)
        case ChunkIs():
            return Kind.CHUNK, _FIXED[Kind.CHUNK].pack(message.chunk, message.nbytes)
        case Done():
            return Kind.DONE, message.state_id
        case Refusal():
            detail = message.detail.encode()[:MAX_DETAIL_BYTES]
            return Kind.REFUSAL, _REFUSAL_CODE.pack(message.code) + detail


def _refusal(payload: bytes) -> Refusal | Malformed:
    try:
        code = Code(payload[0])
    except ValueError:
        return Malformed(reason=f"refusal {payload[0]} does not exist")
    detail = payload[1:].decode(errors="replace")
    # The text ends up in logs: nothing in it may steer a terminal.
    return Refusal(code=code, detail="".join(char if char.isprintable() else "?" for char in detail))
