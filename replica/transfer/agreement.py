"""Which state is the true one when donors offer different ones: more than half must offer it. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from replica.transfer.manifest import Manifest


class Open(Enum):
    """There is no state that could be taken now."""

    UNDECIDED = auto()  # donors differ, and more of them are expected to answer
    DISAGREEMENT = auto()  # donors differ, and no state has more than half of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreed:
    """The state to take. Not `certain` while donors that have not answered could outvote it."""

    state_id: bytes
    certain: bool


def agree(votes: Mapping[str, bytes], waiting: int) -> Agreed | Open:
    """Judge the state ids that donors offer; `waiting` more donors are still expected to answer.

    What all of them offer may be fetched at once. It may be adopted only when it is certain.
    """
    if not votes:
        return Open.UNDECIDED
    (state_id, count), *others = Counter(votes.values()).most_common()
    voters = len(votes) + waiting
    if not others or 2 * count > voters:
        return Agreed(state_id=state_id, certain=waiting == 0 or 2 * count > voters)
    return Open.UNDECIDED if waiting else Open.DISAGREEMENT


def difference(one: Manifest, other: Manifest) -> str:
    """Where two offers of one step differ, in words: the first tensor whose bytes do."""
    if one.layout.tensors != other.layout.tensors:
        return "the tensors differ"
    if one.layout.chunk_bytes != other.layout.chunk_bytes:
        return f"chunks of {one.layout.chunk_bytes} and {other.layout.chunk_bytes} bytes"
    pairs = enumerate(zip(one.digests, other.digests, strict=True))
    differing = [chunk for chunk, (a, b) in pairs if a != b]
    if not differing:
        return "the steps differ"
    return f"{one.layout.names_in(differing[0])} ({len(differing)} of {one.layout.chunks} chunks differ)"
