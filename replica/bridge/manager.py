"""torchft's Manager, reduced to what a step needs of it: begin an attempt, vote, and the step number."""

import os
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torchft.manager import Manager

from lighthouse.access import OPEN, Access
from replica.bridge.interrupts import Interrupts
from replica.bridge.process_group import CrossGroupProcessGroup
from replica.bridge.transport import Heal, HealTransport
from replica.config import GroupConfig, Mode
from replica.error_line import one_line
from replica.errors import RestartError
from replica.mesh import Ranks, StoreAddress
from replica.rounds import Peer
from replica.transfer import Served

QUORUM_RETRY_INTERVAL_S = 0.5
State = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Start:
    """How an attempt begins on this rank.

    `error` is None, or one line that says why this rank cannot take part. `changed` says that the
    quorum is not that of the last attempt. `peers` are its members, each with the step that it
    held when it joined. `heal` tells of the newer state that this rank fetched, which is not
    applied yet: `stash` holds it.
    """

    quorum_id: int
    changed: bool
    peers: tuple[Peer, ...]
    configured: bool
    error: str | None
    stash: State | None = None
    heal: Heal = field(default_factory=Heal)

    @property
    def healed_from(self) -> tuple[int, ...] | None:
        """The groups that gave newer state, None without any."""
        return None if self.stash is None or self.heal.received is None else self.heal.received.groups


def take_torchft_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove TORCHFT_* variables: inside torchft they would beat the arguments that we pass."""
    for name in [name for name in environment if name.startswith("TORCHFT_")]:
        del environment[name]


class ManagerBridge:
    """Owns one torchft Manager, its process group and its transport, for one incarnation.

    Making it blocks until the Lighthouse answers, and heartbeats start: make it when everything
    else is ready. `own` gives this rank's tensors by name; they are copied for joiners while the
    training thread waits inside `begin`, never during a forward. `fresh` says whether they are worth
    nothing, so that a heal may write into them. `access` is what peers are shown. `on_fetch` is called when
    a heal begins, `configuring` is entered while members connect. All methods belong to that thread.
    """

    def __init__(
        self,
        *,
        config: GroupConfig,
        ranks: Ranks,
        store: StoreAddress,
        advertise_addr: str,
        signature: int,
        held: Callable[[], frozenset[int]],
        own: Callable[[], State],
        fresh: Callable[[], bool],
        on_served: Callable[[Served], None],
        access: Access = OPEN,
        on_fetch: Callable[[], None] = lambda: None,
        configuring: Callable[[], AbstractContextManager[object]] = nullcontext,
        interrupts: Interrupts | None = None,
    ) -> None:
        timeouts = config.timeouts
        self._timeouts = timeouts
        self._lighthouse = config.lighthouse
        self._stash: State | None = None
        self._seen_quorum_id = -1
        take_torchft_environment()
        self._transport = HealTransport(
            timeout_s=timeouts.transfer_s,
            advertise_addr=advertise_addr,
            own=own,
            fresh=fresh,
            on_served=on_served,
            access=access,
            on_fetch=on_fetch,
            interrupts=interrupts,
            quorum_id=lambda: self.process_group.quorum_id,
            peers=lambda: self.process_group.peers,
            group=config.group,
            equal_bits=config.mode is Mode.EXACT,
        )
        self.process_group = CrossGroupProcessGroup(
            group=config.group,
            step=lambda: self._manager.current_step(),
            held=held,
            address=lambda: self._transport.address,
            advertise_addr=advertise_addr,
            configure_timeout_s=timeouts.configure_s,
            collective_timeout_s=timeouts.collective_s,
            signature=signature,
            configuring=configuring,
            interrupts=interrupts,
        )
        try:
            self._manager = self._make_manager(config, ranks, store, advertise_addr)
        except (TimeoutError, RuntimeError) as error:
            # The other ranks ask rank 0, which is gone when it was refused in the meantime.
            who = "the Lighthouse went away" if ranks.rank == 0 else "rank 0 of this group ended"
            raise RestartError(f"{who} during the start ({one_line(error)})") from error

    def _make_manager(
        self,
        config: GroupConfig,
        ranks: Ranks,
        store: StoreAddress,
        advertise_addr: str,
    ) -> Manager:
        timeouts = config.timeouts
        manager = Manager(
            pg=self.process_group,
            load_state_dict=self._keep,
            state_dict=dict,  # the transport takes the tensors itself
            min_replica_size=1,
            use_async_quorum=False,
            timeout=timedelta(seconds=timeouts.transfer_s),
            quorum_timeout=timedelta(seconds=timeouts.lighthouse_wait_s),
            connect_timeout=timedelta(seconds=timeouts.connect_s),
            rank=ranks.rank,
            world_size=ranks.world_size,
            store_addr=store.host,
            store_port=store.port,
            lighthouse_addr=f"http://{config.lighthouse}",
            replica_id=f"{config.job}/{config.group}",
            port=0,
            hostname=advertise_addr,
            heartbeat_interval=timedelta(seconds=timeouts.heartbeat_interval_s),
            checkpoint_transport=self._transport,
            init_sync=False,
            quorum_retries=int(timeouts.lighthouse_wait_s / QUORUM_RETRY_INTERVAL_S),
        )
        # The uuid that it has added is this incarnation's secret: it must not be in its lines in the log.
        manager._logger._replica_id = f"{config.job}/{config.group}"
        return manager

    @property
    def replica_id(self) -> str:
        """JOB/GROUP:UUID, this incarnation's name and secret on torchft's wire."""
        return str(self._manager._store.get("replica_id").decode())

    @property
    def quorum_id(self) -> int:
        """Of the last quorum, negative before the first."""
        return int(self._manager._quorum_id)

    def begin(self) -> Start:
        """Ask for a quorum, connect to its members, and fetch newer state if they have some.

        Blocks until the Lighthouse has a quorum. Raises RestartError when it has none for
        `lighthouse_wait_s`.
        """
        self._stash, self._transport.heal = None, Heal()
        try:
            self._manager.start_quorum()
        except TimeoutError as error:
            address, waited_s = self._lighthouse, self._timeouts.lighthouse_wait_s
            raise RestartError(
                f"the Lighthouse at {address} gave no quorum for {waited_s:g} s: "
                f"`python -m lighthouse status {address}` tells what it waits for"
            ) from error
        except RuntimeError as error:
            raise RestartError(f"rank 0 of this group is gone ({one_line(error)})") from error
        self._transport.stage_for_joiners(self._manager.current_step())
        return self._describe()

    def _describe(self) -> Start:
        group = self.process_group
        quorum_id = self._manager._quorum_id
        changed, self._seen_quorum_id = quorum_id != self._seen_quorum_id, quorum_id
        failure = self._manager.errored()
        return Start(
            quorum_id=quorum_id,
            changed=changed,
            peers=group.peers,
            configured=group.usable,
            error=None if failure is None else one_line(failure.original_exception),
            stash=self._stash,
            heal=self._transport.heal,
        )

    def _keep(self, state: State) -> None:
        self._stash = state

    def set_step(self, step: int) -> None:
        """Make the Manager's step number that of the state which this rank really holds.

        The Manager moves its number when newer state has arrived; whether it is adopted is decided
        later, by all ranks of the group together.
        """
        self._manager._step = step

    def vote(self, willing: bool) -> bool:
        """Whether every rank of this group is willing to commit; the step number rises then.

        Blocks until all ranks of the group have voted. Raises RestartError when one does not.
        """
        if not willing:
            self._manager.report_error(RuntimeError("this attempt is not to be committed"))
        try:
            return bool(self._manager.should_commit(timeout=timedelta(seconds=self._timeouts.vote_s)))
        except (TimeoutError, RuntimeError) as error:
            raise RestartError(f"a rank of this group did not vote ({one_line(error)})") from error

    def close(self) -> None:
        """Stop serving and beating. Blocks for the servers to end, a fraction of a second."""
        self._manager.shutdown(wait=False)
        self.process_group.shutdown()
