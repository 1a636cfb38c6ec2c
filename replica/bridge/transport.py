"""How a joiner gets the live state: our transfer under torchft's interface for it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torchft.checkpointing.transport import CheckpointTransport

from lighthouse.access import OPEN, Access
from replica.bridge.interrupts import Interrupts, Undisturbed
from replica.rounds import Peer
from replica.transfer import Cause, Donor, DonorSettings, Fetched, Incident, NotFetched, Served, fetch

LOG = logging.getLogger("headway")
State = Mapping[str, torch.Tensor]
# Above every quorum id: what is over for it too has ended this incarnation.
NO_ATTEMPT = 2**63 - 1


class HealFailedError(RuntimeError):
    """The state did not come; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Received:
    """A completed fetch of a joiner: of which step, from which groups, and how it went."""

    step: int
    groups: tuple[int, ...]
    bytes: int
    seconds: float


@dataclass(kw_only=True)
class Heal:
    """What became of this attempt's heal on this rank; empty where there was none.

    in_place: it went into this rank's own tensors. torn: those were overwritten in part. refused: no
    donor takes this group for one of its job. incidents: what was wrong with which group (None where
    the donor is not a member).
    """

    received: Received | None = None
    in_place: bool = False
    torn: bool = False
    refused: bool = False
    incidents: list[tuple[int | None, Incident]] = field(default_factory=list)


class HealTransport(CheckpointTransport[dict[str, Any]]):  # type: ignore[misc]
    """Serves this rank's state to joiners, and reads it from all members that have it at once.

    `own` gives this rank's tensors by name; they are read when a copy is staged, on the thread that
    stages, and written by a heal only while `fresh()` says that they are worth nothing. `peers` are
    the members of the quorum. `on_served` is called on a thread of the donor's, `on_fetch` when a
    heal begins. `access` is what donors and joiners show each other. `interrupts` ends a heal early. Alone, a
    joiner asks the one donor that torchft names. `group` is this rank's. With `equal_bits` donors must
    not differ; without, the first of them counts.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        advertise_addr: str,
        own: Callable[[], State],
        fresh: Callable[[], bool],
        on_served: Callable[[Served], None],
        access: Access = OPEN,
        on_fetch: Callable[[], None] = lambda: None,
        interrupts: Interrupts | None = None,
        quorum_id: Callable[[], int] = lambda: -1,
        peers: Callable[[], Sequence[Peer]] = tuple,
        group: int = 0,
        equal_bits: bool = True,
    ) -> None:
        self._timeout_s = timeout_s
        self._own = own
        self._fresh = fresh
        self._on_fetch = on_fetch
        self._interrupts: Interrupts = interrupts or Undisturbed()
        self._quorum_id = quorum_id
        self._peers = peers
        self._group = group
        self._equal_bits = equal_bits
        self._staged_for: int | None = None
        self._access = access
        settings = DonorSettings(hold_s=timeout_s)
        self._donor = _donor(advertise_addr, settings=settings, access=access, on_served=on_served)
        self.heal = Heal()

    @property
    def address(self) -> str:
        """HOST:PORT where joiners ask for this rank's state."""
        return self._donor.address

    def metadata(self) -> str:
        """What torchft tells a joiner of this donor: its address."""
        return self._donor.address

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:
        """Stage a copy of the state for joiners. Blocks for the copy, not for them."""
        self.stage(step, joiners=len(dst_ranks))

    def stage(self, step: int, *, joiners: int) -> None:
        """Stage a copy of this rank's tensors as the state of `step`, once in each quorum.

        A donor that cannot, for want of memory for example, is not harmed: others are asked.
        """
        if self._staged_for == self._quorum_id():
            return
        self._staged_for = self._quorum_id()
        try:
            self._donor.stage(step, self._own(), joiners=max(1, joiners, len(self._behind(step))))
        except (ValueError, RuntimeError, MemoryError) as error:
            LOG.warning("group %s cannot give its state to joiners: %s", self._group, error)

    def stage_for_joiners(self, step: int) -> None:
        """Stage if this rank came with the state of `step`, the newest, and a member is behind.

        torchft names one donor for each joiner; all that have the state are asked. A joiner that has
        just fetched it has not adopted it yet: what it holds is still its old state.
        """
        behind = self._behind(step)
        came_with = [peer.step for peer in self._peers() if peer.group == self._group]
        if behind and came_with == [step] and step == max(peer.step for peer in self._peers()):
            self.stage(step, joiners=len(behind))

    def _behind(self, step: int) -> list[Peer]:
        return [peer for peer in self._peers() if peer.step < step]

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> dict[str, Any]:
        """Fetch the state of `step` from all members that have it.

        Blocks at most as long as a heal may take, and only while the attempt is not over. Raises
        TimeoutError, HealFailedError, or ValueError for own tensors that cannot be received.
        """
        self._on_fetch()
        groups = {peer.address: peer.group for peer in self._peers() if peer.step == step and peer.address}
        # Joiners of a large job start at different donors.
        first = self._group % len(groups) if groups else 0
        donors = [*list(groups)[first:], *list(groups)[:first]] or [metadata]
        self.heal.in_place = self._fresh()
        timeout_s = min(self._timeout_s, timeout.total_seconds())
        result = self._fetch(donors, step, timeout_s)
        if isinstance(result, NotFetched) and result.cause is Cause.DISAGREEMENT and not self._equal_bits:
            result = self._fetch(list(groups)[:1], step, timeout_s)
        self.heal.incidents += [(groups.get(each.donor), each) for each in result.incidents]
        if isinstance(result, NotFetched):
            self.heal.torn = self.heal.torn or result.torn
            self.heal.refused = result.cause is Cause.REFUSED
            if result.cause is Cause.DEADLINE:
                raise TimeoutError(f"timed out: {result.sentence}")
            raise HealFailedError(result.sentence)
        self.heal.received = _received(result, groups)
        return {"user": {"default": dict(result.tensors)}, "torchft": {"step": step, "batches_committed": 0}}

    def _fetch(self, donors: Sequence[str], step: int, timeout_s: float) -> Fetched | NotFetched:
        quorum_id = self._quorum_id()

        def interrupted(torn: bool) -> bool:
            # Half a state is worth nothing: it is finished from the donors that are left, also when
            # the death of one has ended the attempt.
            return self._interrupts.over(NO_ATTEMPT if torn else quorum_id) is not None

        return fetch(
            donors,
            step=step,
            expected=self._own(),
            fresh=self.heal.in_place,
            timeout_s=timeout_s,
            token=self._access.token,
            tls=self._access.tls,
            interrupted=interrupted,
        )

    def shutdown(self, wait: bool = True) -> None:
        """Stop serving and free what is staged."""
        self._donor.close()


def _donor(advertise_addr: str, *, access: Access, **options: Any) -> Donor:
    """A donor on the advertised interface, or on all where that address is not one of this host."""
    options |= {"token": access.token, "tls": access.tls}
    try:
        return Donor(bind=advertise_addr, advertise_addr=advertise_addr, **options)
    except OSError:
        return Donor(advertise_addr=advertise_addr, **options)


def _received(result: Fetched, groups: Mapping[str, int]) -> Received:
    gave = {groups[share.donor] for share in result.donors if share.bytes and share.donor in groups}
    return Received(step=result.step, groups=tuple(sorted(gave)), bytes=result.bytes, seconds=result.seconds)
