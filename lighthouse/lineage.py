"""Which incarnation holds each group's place, and which ones never come back. Bounded, and no I/O.

It outlives the server: a process that was frozen for long must not put out the one that has taken
its place. Incarnations are known by a hash, so that the record holds no secret for longer than
needed.
"""

import hashlib
from collections import OrderedDict
from functools import lru_cache

from lighthouse.model import Key, Refusal, ReplicaId


@lru_cache(maxsize=4096)
def digest_of(replica_id: str) -> str:
    """16 hex digits that stand for an incarnation."""
    return hashlib.blake2s(replica_id.encode(), digest_size=8).hexdigest()


Holders = tuple[tuple[int, str], ...]
Tombs = tuple[tuple[str, Refusal], ...]


class Lineage:
    """Reads like a land register: one holder per plot, and a list of those who were put out.

    Replicas of the torchft-only pool, where every incarnation has a name of its own, do not hold
    a place that another could want.
    """

    def __init__(self, *, holders: Holders = (), tombs: Tombs = (), max_holders: int, max_tombs: int) -> None:
        self._holders: OrderedDict[Key, str] = OrderedDict(holders)
        self._tombs: OrderedDict[str, Refusal] = OrderedDict(tombs)
        self._max_holders = max_holders
        self._max_tombs = max_tombs
        self.changed = False

    def holders(self) -> Holders:
        """Group and hash of its present incarnation, oldest entry first."""
        return tuple((key, digest) for key, digest in self._holders.items() if isinstance(key, int))

    def tombs(self) -> Tombs:
        """Hash of an incarnation and why it may not come back, oldest first."""
        return tuple(self._tombs.items())

    def verdict(self, id: ReplicaId) -> Refusal | None:
        """Why this incarnation may not come back, or None."""
        return self._tombs.get(digest_of(id.text))

    def is_held_by(self, id: ReplicaId) -> bool:
        """Whether the place is known to be this incarnation's."""
        return self._holders.get(id.key) == digest_of(id.text)

    def is_held_by_another(self, id: ReplicaId) -> bool:
        """Whether the place is known to be another incarnation's."""
        return self._holders.get(id.key, digest_of(id.text)) != digest_of(id.text)

    def take(self, id: ReplicaId) -> None:
        """Give the place to this incarnation; the one before it is superseded."""
        if isinstance(id.key, str):
            return
        digest, before = digest_of(id.text), self._holders.get(id.key)
        if before == digest:
            return
        if before is not None:
            self.bury_digest(before, Refusal.SUPERSEDED)
        self._holders[id.key] = digest
        self._holders.move_to_end(id.key)
        while len(self._holders) > self._max_holders:
            self._holders.popitem(last=False)
        self.changed = True

    def bury(self, id: ReplicaId, refusal: Refusal) -> None:
        """Never let this incarnation in again."""
        self.bury_digest(digest_of(id.text), refusal)

    def bury_digest(self, digest: str, refusal: Refusal) -> None:
        """Never let the incarnation of this hash in again."""
        if digest in self._tombs:
            return
        self._tombs[digest] = refusal
        while len(self._tombs) > self._max_tombs:
            self._tombs.popitem(last=False)
        self.changed = True
