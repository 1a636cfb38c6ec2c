"""One try at a step by one quorum: the micro-batches dealt to this rank, the sum, the vote, the update."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xxhash

from lighthouse.client import Phase
from replica.averaging import Reduced, ReduceFailed, mean_loss
from replica.bridge.manager import Start
from replica.errors import UserError
from replica.goodput import Doing, fate_of
from replica.ledger import EventKind, Outcome, Reason
from replica.position import sample_indices
from replica.rng import seeded
from replica.rounds import Plan, micro_batch_of
from replica.step import outcome, verdict
from replica.transfer.memory import flat_bytes, view

if TYPE_CHECKING:
    from replica.group import ReplicaGroup


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one rank runs forward and backward at a time: micro-batch `index` of step `step`.

    Which samples it is made of, and the random numbers drawn while it runs, depend on the job's
    seed, `step` and `index` alone.
    """

    seed: int
    step: int
    index: int
    micro_batches: int
    note_data: Callable[[int, int], None] = lambda count, dataset_size: None

    def samples(self, count: int, dataset_size: int) -> tuple[int, ...]:
        """Indices of its `count` samples in a data set of `dataset_size`, reshuffled each epoch.

        Both must be the same for all micro-batches of the job, or samples would be lost or repeated:
        raises UserError where they are not.
        """
        self.note_data(count, dataset_size)
        return sample_indices(
            seed=self.seed,
            step=self.step,
            micro_batch=self.index,
            micro_batches=self.micro_batches,
            samples_per_micro_batch=count,
            dataset_size=dataset_size,
        )


class Attempt:
    """One try at step `step`; `ReplicaGroup.attempts` makes it, the training loop walks it.

    The loop runs every micro-batch of `micro_batches()`, calls `backward` once for each, then
    `commit`. Every rank of the group must do so, also one that is dealt none. Belongs to the
    training thread.
    """

    def __init__(self, group: "ReplicaGroup", start: Start, plan: Plan) -> None:
        self._group = group
        self._start = start
        self._plan = plan
        self._watch = group.stopwatch
        self._loss: float | None = None
        self._input_hash: int | None = None
        self._over: str | None = None
        self._left = len(plan.rounds_of(group.config.group))
        self.step = plan.step
        self.ended = False
        # Mean over the micro-batches of the step, once it is committed.
        self.loss: float | None = None

    @property
    def quorum_id(self) -> int:
        """Number of the quorum that makes this attempt."""
        return self._plan.quorum_id

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups of the quorum that makes this attempt, this one included, in rising order."""
        return tuple(sorted(peer.group for peer in self._start.peers))

    def micro_batches(self) -> Iterator[MicroBatch]:
        """The micro-batches dealt to this rank; none for a group that has just healed, or a spare.

        Global random number generators are seeded for each and restored after it.
        """
        group = self._group
        for round_index in self._plan.rounds_of(group.config.group):
            if self._over is not None:
                return
            index = micro_batch_of(round_index, group.rank, group.world_size)
            self._loss, self._input_hash = None, None
            with self._watch.time(Doing.COMPUTE), group.round_clock.round():
                with seeded(group.config.seed, self.step, index):
                    yield MicroBatch(
                        seed=group.config.seed,
                        step=self.step,
                        index=index,
                        micro_batches=group.config.micro_batches,
                        note_data=group.note_data,
                    )
                self._end_round(round_index)

    def backward(self, loss: torch.Tensor, inputs: torch.Tensor | None = None) -> None:
        """Run backward of a micro-batch's mean loss (a scalar), and keep the loss for the record.

        `inputs` is what was fed, any dtype; its hash is recorded, so that a checker can prove that
        no sample was lost or repeated. Give it on all ranks or on none.
        """
        if self._loss is not None:
            raise UserError("attempt.backward(loss) was called twice for one micro-batch: call it once")
        loss.backward()
        self._loss = float(loss.detach())
        if inputs is not None:
            self._input_hash = xxhash.xxh64_intdigest(view(flat_bytes(inputs.detach().cpu())))

    def _end_round(self, round_index: int) -> None:
        """Take the round into the sum; the ranks of the group meet here."""
        if self._loss is None:
            raise UserError("attempt.backward(loss) must be called once for each micro-batch")
        group = self._group
        self._left -= 1
        group.buffers.check()
        group.sum.add_round(round_index, self._loss)
        known = self._input_hash is not None
        over = group.notices.over(self.quorum_id)
        with group.round_clock.waiting():
            rows = group.ranks.share([known, as_signed(self._input_hash or 0), over is not None])
        if any(row[2] for row in rows):
            self._over = over or "another rank has heard that it is"
        hashes = b"".join(row[1].to_bytes(8, "little", signed=True) for row in rows)
        group.record.group_event(
            EventKind.ROUND_DONE,
            step=self.step,
            quorum_id=self.quorum_id,
            round=round_index,
            input_xxh64=xxhash.xxh64_hexdigest(hashes) if known else None,
        )

    def commit(self) -> bool:
        """Sum over all groups, vote, and take the optimizer step; False when that did not come about.

        Blocks until the other groups of the quorum have come to the same point or one of them is
        found dead. After False, the next attempt tries the same step again, with the rounds that
        this group has finished.
        """
        if self.ended:
            raise UserError("attempt.commit() was called twice: call it once at the end of each attempt")
        if self._left and self._over is None:
            raise UserError(
                f"attempt.commit() came with {self._left} micro-batches of this rank still to run: "
                f"go through all of attempt.micro_batches() first"
            )
        self.ended = True
        group = self._group
        result = self._reduce()
        reason = self._verdict(result)
        if reason is Reason.NON_FINITE and isinstance(result, Reduced):
            self._name_non_finite(result)
        with self._watch.time(Doing.VOTE):
            committed = group.bridge.vote(reason is Reason.NONE)
        if not committed or isinstance(result, ReduceFailed):
            self._give_up(reason if reason is not Reason.NONE else Reason.VOTED_DOWN)
            return False
        self._apply(result)
        return True

    def _reduce(self) -> Reduced | ReduceFailed:
        group = self._group
        if self._over is not None:
            return ReduceFailed(error=self._over)
        group.stream.progress(self.step, Phase.REDUCE)
        with self._watch.time(Doing.REDUCE):
            return group.sum.reduce(group.bridge.process_group)

    def _verdict(self, result: Reduced | ReduceFailed) -> Reason:
        """Whether this rank may commit; a failure that others may not see is told to them."""
        reason = verdict(result)
        if not isinstance(result, ReduceFailed):
            return reason
        if self._group.notices.over(self.quorum_id) is not None or self._over is not None:
            return Reason.ATTEMPT_OVER
        self._group.stream.abandon(self.quorum_id, result.error)
        return reason

    def _name_non_finite(self, result: Reduced) -> None:
        """Say whose loss or gradient is not finite. The rank is that of the shard where it shows."""
        group = self._group
        for index in result.bad_rounds:
            micro_batch, owner = micro_batch_of(index, group.rank, group.world_size), self._plan.owners[index]
            loss = result.losses[index]
            what = "gradient" if loss - loss == 0 else f"loss ({loss})"
            group.warn(
                f"step {self.step}: the {what} in micro-batch {micro_batch} of group {owner}, "
                f"rank {group.rank}, is not finite"
            )
            group.record.event(
                EventKind.NON_FINITE, step=self.step, owner=owner, micro_batch=micro_batch, loss=loss
            )
        if result.overflow:
            group.warn(f"step {self.step}: the sum of all gradients is too large for a float32")

    def _give_up(self, reason: Reason) -> None:
        """End the attempt without a commit. All ranks keep their finished rounds, or all drop them."""
        group = self._group
        if any(row[0] for row in group.ranks.share([reason is Reason.NON_FINITE])):
            reason = Reason.NON_FINITE
        rounds = group.held_rounds()
        if outcome(reason) is Outcome.DISCARDED:
            group.sum.reset()
        group.record.attempt(
            step=self.step,
            quorum_id=self.quorum_id,
            outcome=outcome(reason),
            reason=reason,
            participants=self.groups,
            rounds=rounds,
            healed_from=self._start.healed_from,
            seconds=self._watch.seconds(),
        )
        self._settle(outcome(reason))
        group.attempt_ended(reason)

    def _apply(self, result: Reduced) -> None:
        group = self._group
        group.stream.progress(self.step, Phase.COMMIT)
        with self._watch.time(Doing.COMMIT):
            rate = group.updater.apply(self.step)
            self.loss = group.ranks.mean(mean_loss(result.losses))
            digest = group.digest_after(self.step)
        group.record.attempt(
            step=self.step,
            quorum_id=self.quorum_id,
            outcome=Outcome.COMMITTED,
            participants=self.groups,
            rounds=tuple(enumerate(self._plan.owners)),
            loss=self.loss,
            grad_norm=group.updater.grad_norm,
            lr=rate,
            digest=digest or None,
            healed_from=self._start.healed_from,
            seconds=self._watch.seconds(),
        )
        self._settle(Outcome.COMMITTED)
        group.attempt_ended(Reason.NONE)
        if group.saves is not None:
            with self._watch.time(Doing.SAVE):
                group.saves.after_commit(self.quorum_id, self._plan.owners, digest)

    def _settle(self, how: Outcome) -> None:
        """Count the time of this attempt as what came of it."""
        dealt = self._group.config.group in self._plan.owners
        healed = self._start.healed_from is not None
        self._watch.end_attempt(fate_of(how, healed=healed, dealt=dealt))


def as_signed(value: int) -> int:
    """A 64-bit hash as the signed integer with the same bits, which is what tensors hold."""
    return value - (1 << 64) if value >> 63 else value
