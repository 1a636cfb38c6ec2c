"""The process group across replica groups: rebuilt at each change of quorum, left rather than aborted."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torchft.process_group import ProcessGroup, create_store_client

from replica.bridge.interrupts import Interrupts, Undisturbed, wait_for
from replica.introduction import decode, encode
from replica.rounds import Peer


class Graveyard:
    """Destroys process groups that are no longer used away from the training thread.

    Destroying one closes its connections, which ends the waiting of peers that are still in a
    collective of it. The destructor of a gloo group blocks while a collective of its own is pending
    (7 to 30 s were seen, at most the collective's timeout), and whoever drops the last reference
    runs it. So each has a thread of its own: none waits for another's. Tensors of an abandoned
    collective are buried with their group, because gloo may still write into them.
    """

    REST_S = 2.0

    def bury(self, remains: list[object], *, pending: bool = False) -> None:
        """Empty a list that holds the last references to its items. Does not block.

        pending: a collective of it still runs, and frames that left it may hold it for a moment
        longer; the thread waits until they have let go.
        """

        def dig() -> None:
            if pending:
                time.sleep(self.REST_S)
            remains.clear()

        threading.Thread(target=dig, name="headway-graveyard", daemon=True).start()


class CrossGroupProcessGroup(ProcessGroup):  # type: ignore[misc]
    """Gloo across the replica groups of a quorum, one for each group rank.

    torchft's Manager calls `configure` whenever the quorum id changes. It builds the new group on
    a helper thread and waits for it at most `configure_timeout_s`, then all members tell each
    other their group, step, held rounds and where they serve their state; `step`, `held` and `address`
    are asked for this rank's. Everything but the building runs on the thread that calls. `signature`
    must be equal in all groups: the sums of groups that train different models would be of different
    lengths. `configuring` is entered while `configure` runs. `interrupts` ends waits early.
    """

    def __init__(
        self,
        *,
        group: int,
        step: Callable[[], int],
        held: Callable[[], frozenset[int]] = frozenset,
        address: Callable[[], str] = str,
        advertise_addr: str,
        configure_timeout_s: float,
        collective_timeout_s: float,
        signature: int = 0,
        configuring: Callable[[], AbstractContextManager[object]] = nullcontext,
        interrupts: Interrupts | None = None,
    ) -> None:
        super().__init__(0, 1)
        self._signature = signature
        self._configuring = configuring
        self._interrupts: Interrupts = interrupts or Undisturbed()
        self._group = group
        self._current_step = step
        self._held = held
        self._address = address
        self._advertise_addr = advertise_addr
        self._configure_timeout_s = configure_timeout_s
        self._collective_timeout_s = collective_timeout_s
        self._gloo: Any = None
        self._graveyard = Graveyard()
        self._usable = False
        self.peers: tuple[Peer, ...] = ()
        self.quorum_id = -1

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Leave the old group and join the one of the new quorum. Raises when a member is missing."""
        with self._configuring():
            self._leave()
            self.quorum_id = -1 if quorum_id is None else quorum_id
            if world_size > 1:
                self._gloo = self._build(store_addr, rank, world_size)
            self.peers = self._introduce(world_size)
            self._usable = True

    def _leave(self) -> None:
        self._usable = False
        self.peers = ()
        if self._gloo is not None:
            # Only the list may hold the group: a name for it here could make this thread destroy it.
            remains: list[object] = [self._gloo]
            self._gloo = None
            self._graveyard.bury(remains)

    def _build(self, store_addr: str, rank: int, world_size: int) -> Any:
        """Connect to all members; the thread that does it is left behind when it takes too long."""
        outcome: list[Any] = []
        ready = threading.Event()

        def connect() -> None:
            try:
                outcome.append(self._connect(store_addr, rank, world_size))
            except Exception as error:
                outcome.append(error)
            ready.set()

        threading.Thread(target=connect, name="headway-configure", daemon=True).start()
        failure = self._wait(lambda: bool(outcome), ready, self._configure_timeout_s)
        if failure is not None:
            raise failure
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome.pop()

    def _connect(self, store_addr: str, rank: int, world_size: int) -> Any:
        limit = timedelta(seconds=self._configure_timeout_s)
        store = create_store_client(store_addr, timeout=limit)
        gloo_class: Any = c10d.ProcessGroupGloo
        options = gloo_class._Options()
        options._devices = [gloo_class.create_device(hostname=self._advertise_addr)]
        options._timeout = limit
        gloo = gloo_class(store, rank, world_size, options)
        gloo._set_default_timeout(timedelta(seconds=self._collective_timeout_s))
        return gloo

    def _introduce(self, world_size: int) -> tuple[Peer, ...]:
        me = Peer(group=self._group, step=self._current_step(), held=self._held(), address=self._address())
        if self._gloo is None:
            return (me,)
        mine = torch.frombuffer(bytearray(encode(me, self._signature)), dtype=torch.uint8)
        rows = [torch.empty_like(mine) for _ in range(world_size)]
        self._finish(self._gloo.allgather([rows], [mine]), [rows, mine], self._configure_timeout_s)
        told = [decode(row.numpy().tobytes()) for row in rows]
        strangers = [peer.group for peer, signature in told if signature != self._signature]
        if strangers:
            raise RuntimeError(f"group {strangers[0]} trains another model or step than group {self._group}")
        return tuple(peer for peer, _ in told)

    @property
    def usable(self) -> bool:
        """Whether collectives can be tried: configured, and none has failed since."""
        return self._usable

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """All-reduce (SUM) a CPU tensor over the groups of the quorum; blocks until done.

        Raises RuntimeError when a member is gone and TimeoutError after `collective_timeout_s`;
        the contents of `tensor` are undefined then, and it must not be used again.
        """
        self._all_reduce(tensor, c10d.ReduceOp.SUM)

    def max_in_place(self, tensor: torch.Tensor) -> None:
        """All-reduce (MAX), otherwise as `sum_in_place`."""
        self._all_reduce(tensor, c10d.ReduceOp.MAX)

    def _all_reduce(self, tensor: torch.Tensor, operation: Any) -> None:
        if not self._usable:
            raise RuntimeError("the process group across groups is not configured")
        if self._gloo is None:
            return
        options = c10d.AllreduceOptions()
        options.reduceOp = c10d.ReduceOp(operation)
        self._finish(self._gloo.allreduce([tensor], options), [tensor], self._collective_timeout_s)

    def _finish(self, work: Any, buffers: list[object], timeout_s: float) -> None:
        """Wait for a collective on its future, so that the wait can end while gloo's does not.

        After a failure the whole group is given up: closing its connections tells the other
        members, some of whom may wait for one that is not dead but has left.
        """
        done = threading.Event()
        future = work.get_future()
        future.add_done_callback(lambda _: done.set())
        if (failure := self._outcome(future, done, timeout_s)) is None:
            return
        self._usable = False
        pending = not future.done()
        abandoned, self._gloo = self._gloo, None
        # A list is emptied from its end: the group goes before what it may still write into.
        remains = [*buffers, work, future, abandoned]
        # No frame may keep the group alive, a traceback's neither: its destructor must run now.
        del work, future, abandoned
        self._graveyard.bury(remains, pending=pending)
        raise failure

    def _outcome(self, future: Any, done: threading.Event, timeout_s: float) -> Exception | None:
        """None when the collective ended well; else an error that holds no reference to it."""
        if (failure := self._wait(future.done, done, timeout_s)) is not None:
            return failure
        try:
            future.wait()
        except Exception as error:
            return RuntimeError(next(iter(str(error).splitlines()), type(error).__name__))
        return None

    def _wait(
        self, is_done: Callable[[], bool], wake: threading.Event, timeout_s: float
    ) -> RuntimeError | TimeoutError | None:
        return wait_for(
            is_done,
            wake,
            what="an answer of every group in the quorum",
            timeout_s=timeout_s,
            interrupts=self._interrupts,
            quorum_id=self.quorum_id,
        )

    def errored(self) -> Exception | None:
        """None: errors are raised where they happen and belong to the attempt that saw them."""
        return None

    def getBackendName(self) -> str:  # noqa: N802, torch's name
        """Name under which torch lists this group."""
        return "headway-gloo"

    def size(self) -> int:
        """Number of groups in the quorum."""
        return max(1, len(self.peers))

    def shutdown(self) -> None:
        """Leave the current group. Does not block."""
        self._leave()
