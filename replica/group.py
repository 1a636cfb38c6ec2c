"""ReplicaGroup: the noun that a training script holds. It wires the parts; it decides nothing."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import torch
import xxhash
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lighthouse.client import Phase
from replica.access import access_of, what_is_open
from replica.address import reachable_address
from replica.alone import AloneBridge, AloneStream
from replica.attempt import Attempt
from replica.averaging import gradient_sum
from replica.bridge.manager import ManagerBridge
from replica.buffers import BufferGuard
from replica.cold_start import begin_cold
from replica.config import NO_LIGHTHOUSE, GroupConfig, Mode, config_from_environment
from replica.errors import RestartError, UserError
from replica.failures import Failures
from replica.goodput import Doing
from replica.leaving import leave
from replica.ledger import EventKind, Reason, new_incarnation
from replica.mesh import Ranks
from replica.metrics_server import serve_metrics
from replica.notices import Notices, drain_on_sigterm
from replica.numerics import numeric_platform
from replica.opening import Opening, Turn
from replica.proc import age_s
from replica.quorum_wait import QuorumWait
from replica.recorder import Recorder
from replica.round_clock import RoundClock
from replica.rounds import rounds_per_step
from replica.saves import Saves
from replica.sharding import shard
from replica.state import TrainingState
from replica.stopwatch import Stopwatch
from replica.streams import LighthouseStream, StartCheck, act_on
from replica.transfer import Served
from replica.transfer.memory import specs_of
from replica.updater import Updater
from replica.watchdog import die_with_parent

LOG = logging.getLogger("headway")
# What a Lighthouse takes.
MAX_FINGERPRINT_CHARS = 1024


class ReplicaGroup:
    """The ranks of one torchrun as one member of a fault-tolerant job.

    A context manager, one per process; every rank of the group makes one. Use in this order:
    make it, `shard` the model, make the optimizer, `register` both, then loop over `attempts`.
    All methods belong to the training thread. Raises UserError for what the user can mend and
    RestartError when this incarnation cannot go on; `replica.run` turns both into exit codes.
    """

    bridge: ManagerBridge | AloneBridge

    def __init__(self, config: GroupConfig, *, device: str = "cpu", threads: int | None = 1) -> None:
        """Join the ranks of the group; blocks until all of them are there.

        device is "cpu" or "cuda"; threads is how many CPU threads torch may use, None for as many
        as it likes.
        """
        die_with_parent()
        self.stopwatch = Stopwatch(age_s=age_s())
        self.round_clock = RoundClock()
        if threads is not None:
            torch.set_num_threads(threads)
        self.config = config
        self._access = access_of(config)
        self.ranks = Ranks(device_type=device, timeout_s=config.timeouts.vote_s)
        self.rounds = rounds_per_step(config.micro_batches, self.world_size)
        self._alone = config.lighthouse == NO_LIGHTHOUSE
        incarnation = f"{self.ranks.share([int(new_incarnation(), 16)])[0][0]:08x}"
        self.record = Recorder(
            out=config.out,
            group=config.group,
            rank=self.rank,
            incarnation=incarnation,
            metrics=serve_metrics(config, self.seconds_by_cause) if self.rank == 0 else None,
        )
        self.notices = Notices()
        self.stream: LighthouseStream | AloneStream = AloneStream(saves=config.backstop is not None)
        self._advertise_addr = config.advertise_addr or "127.0.0.1"
        if not self._alone:
            self.stream = LighthouseStream(
                config,
                self.rank,
                self.notices,
                self._access,
                self.seconds_by_cause,
                self.round_clock.times,
            )
            self._advertise_addr = config.advertise_addr or reachable_address(config.lighthouse)
        if self.rank == 0 and not self._alone:
            for said in what_is_open(config):
                self.warn(said)
        self.quorum_wait = QuorumWait(self.stream.status, job=config.job, say=self.warn)
        self.told_of_deaths = self._must_heal = False
        self._step = 0
        self.last_digest = ""
        self.failures = Failures(max_non_finite=config.max_nonfinite_steps)
        self._model: nn.Module | None = None
        self._data: tuple[int, int] | None = None
        self.saves: Saves | None = None

    @classmethod
    def from_env(cls, *, device: str = "cpu", threads: int | None = 1, **settings: Any) -> Self:
        """A group whose settings come from the environment; explicit `settings` win.

        See `replica.config.config_from_environment`.
        """
        return cls(config_from_environment(**settings), device=device, threads=threads)

    @property
    def rank(self) -> int:
        """Rank of this process in its group."""
        return self.ranks.rank

    @property
    def world_size(self) -> int:
        """R, the number of ranks in the group."""
        return self.ranks.world_size

    @property
    def mesh(self) -> DeviceMesh:
        """The 1-D device mesh of the group's ranks."""
        return self.ranks.mesh

    @property
    def step(self) -> int:
        """Number of optimizer steps that the state of this group holds."""
        return self._step

    def seconds_by_cause(self) -> dict[str, float]:
        """Seconds of this process' life by what they went into: the names are those of `Cause`.

        None ever falls. Rounds, sum and update count once their attempt has ended. Any thread.
        """
        return self.stopwatch.seconds_by_cause()

    def shard(self, model: nn.Module, blocks: Iterable[nn.Module] = ()) -> nn.Module:
        """Shard a model over the ranks of the group with FSDP2: each of `blocks`, then the rest.

        The model must be the same in every process of the job when it comes in: build it from a
        fixed seed.
        """
        shard(model, blocks, self.mesh, self.round_clock)
        return model

    def register(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        learning_rate: Callable[[int], float] | None = None,
        clip_norm: float | None = None,
    ) -> None:
        """Say what is trained. learning_rate maps a step's number to its rate; it must be pure.

        clip_norm bounds the 2-norm of the mean gradient of a step.
        """
        self._model = model
        self.buffers = BufferGuard(model)
        self.state = TrainingState(model, optimizer)
        try:
            specs_of(self.state.tensors())
        except ValueError as error:
            raise UserError(str(error)) from None
        self.sum = gradient_sum(self.config.mode, self.state.parameters, self.rounds)
        self.updater = Updater(
            parameters=self.state.parameters,
            optimizer=optimizer,
            gradients=self.sum,
            learning_rate=learning_rate,
            clip_norm=clip_norm,
        )

    def attempts(self) -> Iterator[Attempt]:
        """Join the job and yield attempts until its last step is committed.

        An attempt that is not committed is followed by another at the same step. Ends at once
        when the job had finished before this group came.
        """
        if self._model is None:
            raise UserError("register a model and an optimizer before the first attempt")
        if self._join():
            opening = Opening(self)
            while (turn := opening.next_turn()) is not Turn.LEAVE:
                if isinstance(turn, Attempt):
                    yield turn
                    if not turn.ended:
                        raise UserError("attempt.commit() must be called at the end of each attempt")
        leave(self)

    def _trajectory(self) -> str:
        """What the state after each step follows from, but for the number of ranks in a group."""
        config = self.config
        words = {"shapes": f"{self.state.layout():016x}", "micro_batches": config.micro_batches}
        words |= {"seed": config.seed, "mode": config.mode}
        return " ".join(f"{name}={value}" for name, value in words.items())

    def _signature(self) -> int:
        """A 63-bit hash of what all groups must have in common to add up their gradients."""
        return xxhash.xxh64_intdigest(f"{self._trajectory()} {self.world_size}".encode()) >> 1

    def _join(self) -> bool:
        """Connect to the Lighthouse and start the Manager; False when the job is finished."""
        if self.config.backstop is not None:
            self.saves = Saves(self, self.config.backstop)
        if self._alone:
            self.bridge = AloneBridge(group=self.config.group, ranks=self.ranks, step=lambda: self._step)
        else:
            self.bridge = self._connect()
        self.record.group_event(
            EventKind.GROUP_STARTED,
            mode=self.config.mode,
            rounds=self.rounds,
            ranks=self.world_size,
            pid=os.getpid(),
            age_s=round(age_s(), 3),
            advertise_addr=self._advertise_addr,
            metrics_url=self.record.metrics_url,
        )
        self.stopwatch.enter(Doing.QUORUM)
        check = self._attach()
        if self.saves is not None and not self._alone and not self.told_of_deaths:
            raise UserError(
                "a backstop needs Headway's own Lighthouse, which decides on one save for all groups: "
                "leave out --backstop, or use `python -m lighthouse serve`"
            )
        if self.rank == 0 and self.told_of_deaths:
            self.quorum_wait.start()
        if check is StartCheck.COLD:
            check = begin_cold(self)
        return not act_on(check, self.config.job)

    def _connect(self) -> ManagerBridge:
        LOG.info("timeouts: %s", self.config.timeouts.describe())
        self.ranks.first_then_all(
            self.stream.wait_until_reachable, timeout_s=2 * self.config.timeouts.lighthouse_wait_s
        )
        return ManagerBridge(
            config=self.config,
            ranks=self.ranks,
            store=self.ranks.open_store(self._advertise_addr),
            advertise_addr=self._advertise_addr,
            signature=self._signature(),
            held=lambda: self.sum.held,
            own=self.state.tensors,
            fresh=lambda: self._must_heal and self._step == 0,
            on_served=self._on_served,
            access=self._access,
            on_fetch=self._on_fetch,
            configuring=lambda: self.stopwatch.time(Doing.CONFIGURE),
            interrupts=self.notices,
        )

    def _attach(self) -> StartCheck:
        """Open the streams of all ranks, rank 0's first, and learn how to begin."""
        platform = self.platform() if self.config.mode is Mode.EXACT else ""
        identity = (self.bridge.replica_id, self.world_size, self.fingerprint(), platform)
        check = self.stream.attach(*identity) if self.rank == 0 else StartCheck.GO_ON
        answers = self.ranks.share([check, self.stream.tells_deaths, self.stream.must_heal])
        self.told_of_deaths, self._must_heal = bool(answers[0][1]), bool(answers[0][2])
        check = StartCheck(answers[0][0])
        if check in (StartCheck.GO_ON, StartCheck.COLD):
            if self.told_of_deaths and self.rank != 0:
                self.stream.watch(*identity)
            drain_on_sigterm(self.notices)
        return check

    def fingerprint(self) -> str:
        """What must be equal in all groups of the job, and in its saves, but for the number of ranks.

        Words like `seed=0`, so that a refusal can say which one differs; a hash where they are too many.
        """
        words = f"{self._trajectory()} {self.config.fingerprint}".rstrip()
        return words if len(words) <= MAX_FINGERPRINT_CHARS else xxhash.xxh3_128_hexdigest(words.encode())

    def platform(self) -> str:
        """What decides over the last bits of this rank's arithmetic."""
        return numeric_platform(self.mesh.device_type)

    def will_heal(self) -> None:
        """What this group starts with is worth nothing: others have the state, or will load it."""
        self._must_heal = True

    def begin_at(self, step: int, quorum_id: int) -> None:
        """The state of this group is that of `step` now, loaded from a save of this quorum."""
        self._step = step
        self.bridge.set_step(step)
        if self.saves is not None:
            self.saves.moved(quorum_id)

    def rise_above(self, quorum_id: int) -> None:
        """Saves of this quorum may lie at the store: those of a job without a Lighthouse must be newer."""
        if isinstance(self.bridge, AloneBridge):  # nobody else counts the lives of such a job
            self.bridge.quorum_id = quorum_id + 1

    def adopt(self, state: Mapping[str, torch.Tensor], step: int) -> None:
        """Make a fetched state, and its step number, this group's own; rounds of older steps go."""
        self.state.adopt(state)
        self.sum.reset()
        self._step = step
        self.last_digest = self.state.digest(self.world_size) if self.config.digest_every else ""
        if self.saves is not None:
            self.saves.moved()

    def note_data(self, samples_per_micro_batch: int, dataset_size: int) -> None:
        """Write down, once, what a step reads of the data. Raises UserError where that changes."""
        if self._data is None:
            self._data = (samples_per_micro_batch, dataset_size)
            self.record.group_event(
                EventKind.DATA, samples_per_micro_batch=samples_per_micro_batch, dataset_size=dataset_size
            )
        elif self._data != (samples_per_micro_batch, dataset_size):
            raise UserError(
                f"samples({samples_per_micro_batch}, {dataset_size}) came after samples{self._data}: "
                f"samples would be lost or repeated; use the same numbers for the whole job"
            )

    def note_evaluation(self, loss: float) -> None:
        """Write down the loss on held-out data of the state that `step` committed steps led to.

        loss: this rank's; the mean over the ranks is written. A collective of the group. Raises
        RestartError when a sibling is gone.
        """
        mean = self.ranks.mean(loss)
        LOG.info("step %s: held-out loss %.4f", self._step, mean)
        self.record.group_event(EventKind.EVALUATION, step=self._step, loss=mean)

    def held_rounds(self) -> tuple[tuple[int, int], ...]:
        """The rounds of this step that this group holds, as the ledger names them."""
        return tuple((index, self.config.group) for index in sorted(self.sum.held))

    def attempt_ended(self, reason: Reason) -> None:
        """Count an attempt that ended with `reason`; raises where the same failure comes for ever."""
        if reason is Reason.NONE:
            self._step += 1
        self.failures.count(reason, step=self._step)

    def digest_after(self, step: int) -> str:
        """Digest of the state that `step` led to, where one is due; empty otherwise and off rank 0."""
        every = self.config.digest_every
        due = every and ((step + 1) % every == 0 or step + 1 == self.config.steps)
        self.last_digest = self.state.digest(self.world_size) if due else ""
        return self.last_digest

    def _on_fetch(self) -> None:
        self.stopwatch.enter(Doing.HEAL)  # until the quorum that brought it has begun
        self.stream.progress(self._step, Phase.HEAL)

    def _on_served(self, served: Served) -> None:
        if served.bytes:
            self.record.event(
                EventKind.HEAL_SENT, step=served.step, bytes=served.bytes, seconds=served.seconds
            )

    def warn(self, message: str) -> None:
        """Log a warning that names group and rank."""
        LOG.warning("group %s rank %s: %s", self.config.group, self.rank, message)

    def close(self) -> None:
        """Leave the job and free everything; a second call does nothing. Blocks for a moment."""
        self.quorum_wait.close()
        self.stream.close()
        if hasattr(self, "bridge"):
            self.bridge.close()
        self.ranks.close()
        self.record.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._alone and self.saves is None and isinstance(error, RestartError):
            raise UserError(f"{error}: without a Lighthouse nobody else has the state, start over") from None
