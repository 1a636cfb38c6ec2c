"""ReplicaGroup: the noun that a training script holds. It wires the parts; it decides nothing."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import xxhash
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from lighthouse.client import Phase, parse_address
from replica.address import reachable_address
from replica.attempt import Attempt
from replica.averaging import GradientSum, ReduceFailed
from replica.bridge.manager import ManagerBridge, Start
from replica.bridge.transport import Sent
from replica.config import GroupConfig, settings_from_environment
from replica.errors import RestartError, UserError
from replica.ledger import EventKind, Outcome, Reason, new_incarnation
from replica.mesh import Ranks
from replica.recorder import Recorder, Stopwatch
from replica.rounds import Plan, deal, rounds_per_step
from replica.state import TrainingState
from replica.step import Ballot, agree
from replica.streams import LighthouseStream, StartCheck, act_on
from replica.updater import Updater
from replica.watchdog import die_with_parent

LOG = logging.getLogger("headway")
STEP_STAMP = "headway.step"
MAX_FAILED_HEALS = 5


class Turn(Enum):
    """What follows a quorum that gives no attempt to walk."""

    AGAIN = "again"
    LEAVE = "leave"


class ReplicaGroup:
    """The ranks of one torchrun as one member of a fault-tolerant job.

    A context manager, one per process; every rank of the group makes one. Use in this order:
    make it, `shard` the model, make the optimizer, `register` both, then loop over `attempts`.
    All methods belong to the training thread. Raises UserError for what the user can mend and
    RestartError when this incarnation cannot go on; `replica.run` turns both into exit codes.
    """

    def __init__(self, config: GroupConfig, *, device: str = "cpu", threads: int | None = 1) -> None:
        """Join the ranks of the group; blocks until all of them are there.

        device is "cpu" or "cuda"; threads is how many CPU threads torch may use, None for as many
        as it likes.
        """
        die_with_parent()
        if threads is not None:
            torch.set_num_threads(threads)
        self.config = config
        self.ranks = Ranks(device_type=device, timeout_s=config.timeouts.vote_s)
        self.rounds = rounds_per_step(config.micro_batches, self.world_size)
        self._advertise_addr = config.advertise_addr or reachable_address(config.lighthouse)
        incarnation = f"{self.ranks.share([int(new_incarnation(), 16)])[0][0]:08x}"
        self.record = Recorder(out=config.out, group=config.group, rank=self.rank, incarnation=incarnation)
        self._stream = LighthouseStream(config, self.rank)
        self._step = 0
        self._first = True
        self._members: tuple[int, ...] = ()
        self._failed_heals = 0
        self._non_finite_steps = 0
        self._model: nn.Module | None = None

    @classmethod
    def from_env(cls, *, device: str = "cpu", threads: int | None = 1, **settings: Any) -> Self:
        """A group whose settings come from the environment; explicit `settings` win.

        `settings` are fields of GroupConfig. Variables: see `settings_from_environment`.
        """
        merged = {**settings_from_environment(), **settings}
        merged.setdefault("job", "job")
        merged.setdefault("group", 0)
        if "lighthouse" not in merged:
            raise UserError("no Lighthouse is given: set TORCHFT_LIGHTHOUSE=HOST:PORT, or start one first")
        try:
            merged["lighthouse"] = parse_address(str(merged["lighthouse"]))
        except ValueError as error:
            raise UserError(str(error)) from None
        if merged.get("out") is not None:
            merged["out"] = Path(merged["out"])
        return cls(GroupConfig(**merged), device=device, threads=threads)

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

    def shard(self, model: nn.Module, blocks: Iterable[nn.Module] = ()) -> nn.Module:
        """Shard a model over the ranks of the group with FSDP2: each of `blocks`, then the rest.

        The model must be the same in every process of the job when it comes in: build it from a
        fixed seed.
        """
        for block in blocks:
            fully_shard(block, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
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
        _refuse_unsynchronised_buffers(model)
        self._model = model
        self.state = TrainingState(model, optimizer)
        self.sum = GradientSum(self.state.parameters, self.rounds)
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
            raise ValueError("register a model and an optimizer before the first attempt")
        if not self._join():
            self._leave()
            return
        while (turn := self._next_attempt()) is not Turn.LEAVE:
            if isinstance(turn, Attempt):
                yield turn
                if not turn.ended:
                    raise ValueError("attempt.commit() must be called at the end of each attempt")
        self._leave()

    def _signature(self) -> int:
        """A 63-bit hash of what all groups must have in common to add up their gradients."""
        text = f"{self.state.layout()} {self.config.micro_batches} {self.world_size} {self.config.seed}"
        return xxhash.xxh64_intdigest(text.encode()) >> 1

    def _leave(self) -> None:
        """Say goodbye: with the last step done, or because the job ended without this group."""
        done = self._step >= self.config.steps
        if not done:
            LOG.info("job %s is finished: nothing is left to do", self.config.job)
        self._stream.goodbye(finished=done, step=self._step)
        self.record.group_event(EventKind.FINISHED, step=self._step)

    def _join(self) -> bool:
        """Connect to the Lighthouse and start the Manager; False when the job is finished."""
        LOG.info("timeouts: %s", self.config.timeouts.describe())
        self.ranks.first_then_all(
            self._stream.wait_until_reachable, timeout_s=2 * self.config.timeouts.lighthouse_wait_s
        )
        store = self.ranks.open_store(self._advertise_addr)
        self.bridge = ManagerBridge(
            config=self.config,
            ranks=self.ranks,
            store=store,
            advertise_addr=self._advertise_addr,
            signature=self._signature(),
            export=self._export,
            on_sent=self._on_sent,
        )
        self.record.group_event(
            EventKind.GROUP_STARTED,
            mode="fast",
            rounds=self.rounds,
            ranks=self.world_size,
            pid=os.getpid(),
            advertise_addr=self._advertise_addr,
        )
        finished = self._stream.attach(self.bridge.replica_id, self.world_size)
        return not any(row[0] for row in self.ranks.share([int(finished)]))

    def _next_attempt(self) -> "Attempt | Turn":
        """One quorum: an attempt to walk, or what to do instead."""
        watch = Stopwatch.start()
        self._stream.progress(self._step, Phase.QUORUM)
        with watch.time("quorum"):
            start = self.bridge.begin()
        if start.received is not None:
            watch.heal, watch.quorum = start.received.seconds, watch.quorum - start.received.seconds
        self._note_quorum(start)
        step = max((peer.step for peer in start.peers), default=self._step) if start.changed else self._step
        plan = self._plan(start, step)
        if not self._agree(start, plan, step):
            self._sit_out(start, plan, watch)
            return Turn.AGAIN
        if start.stash is not None:
            self._adopt(start, step)
        if self._step >= self.config.steps:
            self._wait_for_the_last()
            return Turn.LEAVE
        if self._first and self._finished_without_us(start):
            return Turn.LEAVE
        self._first = False
        self._stream.progress(self._step, Phase.COMPUTE)
        return Attempt(self, start, plan, watch)

    def _finished_without_us(self, start: Start) -> bool:
        """Whether the job ended while this group was starting; raises where its state is gone."""
        check = self._stream.first_quorum(healed=start.healed_from is not None)
        decided = max(row[0] for row in self.ranks.share([check]))
        return act_on(StartCheck(decided), self.config.job)

    def _plan(self, start: Start, step: int) -> Plan:
        members = [peer.group for peer in start.peers if not start.changed or peer.step == step]
        return deal(
            step=step,
            quorum_id=start.quorum_id,
            rounds=self.rounds,
            up_to_date=members or [self.config.group],
        )

    def _agree(self, start: Start, plan: Plan, step: int) -> bool:
        """Whether every rank of the group can take part in the same attempt at the same step."""
        problem = start.error or self._misfit(start, step)
        if problem is not None:
            self.warn(f"step {self._step}: cannot take part in quorum {start.quorum_id}: {problem}")
        holds = step if start.stash is not None else self._step
        ballot = Ballot(
            ready=problem is None and holds == step,
            quorum_id=start.quorum_id,
            step=holds,
            plan=plan.fingerprint,
        )
        return agree(self.ranks.share(ballot.values()))

    def _misfit(self, start: Start, step: int) -> str | None:
        if start.stash is None:
            return None
        stamp = start.stash.pop(STEP_STAMP, torch.tensor(-1))
        if int(stamp) != step:
            return f"the donor sent the state of step {int(stamp)} instead of {step}"
        return self.state.misfit(start.stash)

    def _adopt(self, start: Start, step: int) -> None:
        """Take over the fetched state: weights and step number move together, on all ranks."""
        assert start.stash is not None
        assert start.received is not None
        size = sum(tensor.numel() * tensor.element_size() for tensor in start.stash.values())
        self.state.adopt(start.stash)
        self._step = step
        self._failed_heals = 0
        digest = self.state.digest(self.world_size) if self.config.digest_every else ""
        self.record.event(
            EventKind.HEAL,
            digest=digest or None,
            healed_from=start.healed_from,
            step=step,
            quorum_id=start.quorum_id,
            bytes=size,
            seconds=start.received.seconds,
        )

    def _sit_out(self, start: Start, plan: Plan, watch: Stopwatch) -> None:
        """Walk an attempt that this group cannot take part in, so that it does not hold up others.

        Where the process group came up, zeros are added: the others' sum lacks nothing, unless
        rounds were dealt to this group. Then it votes no.
        """
        self.bridge.set_step(self._step)
        if start.configured:
            self.sum.reduce(self.bridge.process_group.sum_in_place)
        self.bridge.vote(False)
        self.sum.reset()
        reason = Reason.CONFIGURE_FAILED if not start.configured else Reason.GROUP_DISAGREED
        if plan.step > self._step and start.configured:
            reason = Reason.HEAL_FAILED
            self.record.event(EventKind.HEAL_FAILED, reason=start.error or "another rank of the group failed")
        self.record.attempt(
            step=self._step,
            quorum_id=start.quorum_id,
            outcome=Outcome.DISCARDED,
            reason=reason,
            participants=tuple(sorted(peer.group for peer in start.peers)),
            seconds=watch.seconds(),
        )
        self.attempt_ended(reason)

    def attempt_ended(self, reason: Reason) -> None:
        """Count an attempt that ended with `reason`, and stop what fails for ever."""
        if reason is Reason.NONE:
            self._step += 1
        self._non_finite_steps = self._non_finite_steps + 1 if reason is Reason.NON_FINITE else 0
        if self._non_finite_steps >= self.config.max_nonfinite_steps:
            raise UserError(
                f"step {self._step} gave a loss or gradient that is not finite "
                f"{self._non_finite_steps} times in a row: lower the learning rate or look at the data"
            )
        self._failed_heals = self._failed_heals + 1 if reason is Reason.HEAL_FAILED else 0
        if self._failed_heals >= MAX_FAILED_HEALS:
            raise RestartError(
                f"no donor could give this group the job's state in {self._failed_heals} tries"
            )

    def _wait_for_the_last(self) -> None:
        """At the end, wait for the members of the last quorum: one that is behind heals from us."""
        # As in a step: gloo ends the processes of all when members bring buffers of different lengths.
        result = self.sum.reduce(self.bridge.process_group.sum_in_place)
        if isinstance(result, ReduceFailed):
            self.warn(f"a group left before all had the last step ({result.error})")

    def digest_after(self, step: int) -> str:
        """Digest of the state that `step` led to, where one is due; empty otherwise and off rank 0."""
        every = self.config.digest_every
        due = every and ((step + 1) % every == 0 or step + 1 == self.config.steps)
        return self.state.digest(self.world_size) if due else ""

    def _export(self) -> dict[str, torch.Tensor]:
        """What a donor gives; called while the training thread waits for its quorum."""
        return {STEP_STAMP: torch.tensor(self._step), **self.state.export()}

    def _on_sent(self, sent: Sent) -> None:
        self.record.event(EventKind.HEAL_SENT, step=sent.step, bytes=sent.bytes, seconds=sent.seconds)

    def _note_quorum(self, start: Start) -> None:
        if not start.changed:
            return
        members = tuple(sorted(peer.group for peer in start.peers))
        self.record.group_event(
            EventKind.QUORUM, step=self._step, quorum_id=start.quorum_id, participants=members
        )
        if gone := sorted(set(self._members) - set(members)):
            self.record.group_event(EventKind.DEATH_SEEN, dead=gone, quorum_id=start.quorum_id)
        self._members = members

    def warn(self, message: str) -> None:
        """Log a warning that names group and rank."""
        LOG.warning("group %s rank %s: %s", self.config.group, self.rank, message)

    def close(self) -> None:
        """Leave the job and free everything; a second call does nothing. Blocks for a moment."""
        self._stream.close()
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


def _refuse_unsynchronised_buffers(model: nn.Module) -> None:
    """Buffers that training changes would differ between groups: no one averages them."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise UserError(
                f"module {name or 'root'} ({type(module).__name__}) keeps running statistics, which would "
                f"differ between groups: use LayerNorm, RMSNorm or GroupNorm, or track_running_stats=False"
            )
