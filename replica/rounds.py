"""Which replica group runs which round of a step: pure arithmetic, the same on every rank."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import xxhash

from replica.errors import UserError

# Members tell each other what they hold as one bit per round, in a message of fixed length.
MAX_ROUNDS = 4096


def rounds_per_step(micro_batches: int, group_world_size: int) -> int:
    """T = M / R, the rounds that make one step. Raises UserError when R does not divide M."""
    if micro_batches % group_world_size:
        fitting = [r for r in range(1, micro_batches + 1) if micro_batches % r == 0]
        raise UserError(
            f"micro_batches = {micro_batches} cannot be shared by {group_world_size} ranks per group: "
            f"use one of {', '.join(map(str, fitting))} ranks, or another number of micro-batches"
        )
    rounds = micro_batches // group_world_size
    if rounds > MAX_ROUNDS:
        raise UserError(
            f"micro_batches = {micro_batches} makes {rounds} rounds of {group_world_size} micro-batches: "
            f"use at most {MAX_ROUNDS} rounds; larger micro-batches make fewer"
        )
    return rounds


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A member of the quorum as all others see it when they meet.

    group: its number. step: the number of steps that its state holds. held: the rounds of that step
    whose gradients it has already. address: HOST:PORT where joiners ask for its state, of the rank
    that asks.
    """

    group: int
    step: int
    held: frozenset[int] = frozenset()
    address: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who brings which round into one attempt.

    owners[i] is the number of the group that brings round i; group numbers are the keys that peers
    know each other by. Rounds in `held` their owners have already: nobody runs them. Equal plans
    have equal `fingerprint`s on every rank of every group.
    """

    step: int
    quorum_id: int
    owners: tuple[int, ...]
    held: frozenset[int] = field(default=frozenset())

    def rounds_of(self, group: int) -> tuple[int, ...]:
        """Rounds that `group` has yet to run, in rising order; empty for a joiner or a spare."""
        return tuple(
            index for index, owner in enumerate(self.owners) if owner == group and index not in self.held
        )

    def held_by(self, group: int) -> frozenset[int]:
        """Rounds that `group` keeps from earlier attempts; it must drop its gradients of others."""
        return frozenset(index for index in self.held if self.owners[index] == group)

    @property
    def fingerprint(self) -> int:
        """A 63-bit hash of the whole plan, for ranks to compare."""
        text = f"{self.step}:{self.quorum_id}:{','.join(map(str, self.owners))}:{sorted(self.held)}"
        return xxhash.xxh64_intdigest(text.encode()) >> 1


def deal(*, step: int, quorum_id: int, rounds: int, members: Iterable[Peer]) -> Plan:
    """Deal the rounds of a step to the members that hold the state of that step.

    Rounds that a member holds stay with it. A member holds its gradients as one sum, so where two
    hold the same round, one of them drops all that it holds: the one with fewer rounds, else the
    one with the higher number. The rounds still missing are dealt in turn, so that no group has to
    run more than one more than another. Groups beyond their number get none: they are hot spares.
    Raises ValueError when no member is up to date.
    """
    up_to_date = [peer for peer in members if peer.step == step]
    if not up_to_date:
        raise ValueError("no group is up to date: nobody could run a round")
    owners = _kept(up_to_date, rounds)
    held = frozenset(owners)
    groups = sorted({peer.group for peer in up_to_date})
    missing = [index for index in range(rounds) if index not in held]
    owners.update({index: groups[turn % len(groups)] for turn, index in enumerate(missing)})
    return Plan(
        step=step, quorum_id=quorum_id, owners=tuple(owners[index] for index in range(rounds)), held=held
    )


def _kept(peers: Sequence[Peer], rounds: int) -> dict[int, int]:
    """The owner of each round that is held and kept."""
    owners: dict[int, int] = {}
    for peer in sorted(peers, key=lambda peer: (-len(peer.held), peer.group)):
        if owners.keys().isdisjoint(peer.held) and all(index < rounds for index in peer.held):
            owners.update(dict.fromkeys(peer.held, peer.group))
    return owners


def micro_batch_of(round_index: int, group_rank: int, group_world_size: int) -> int:
    """Number of the micro-batch that rank `group_rank` runs in round `round_index`."""
    return round_index * group_world_size + group_rank


def as_mask(held: Iterable[int]) -> bytes:
    """Held rounds as MAX_ROUNDS bits, for the wire."""
    return sum(1 << index for index in held).to_bytes(MAX_ROUNDS // 8, "little")


def from_mask(mask: bytes) -> frozenset[int]:
    """The rounds whose bits are set in what `as_mask` made."""
    bits = int.from_bytes(mask, "little")
    return frozenset(index for index in range(bits.bit_length()) if bits >> index & 1)
