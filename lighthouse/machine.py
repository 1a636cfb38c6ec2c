"""One job: events and the time go in, effects come out. No I/O, no clock, no log.

Every method takes the time of the event. A quorum is first proposed (Persist), and only when its
record is durable are the callers answered (Answer).
"""

from lighthouse.admission import Admission
from lighthouse.cold_start import ColdStarts
from lighthouse.effects import CloseStream, Happening, Note, Refuse, Tell
from lighthouse.ended import over_notice
from lighthouse.identity import Mismatch
from lighthouse.lag import RoundTimes
from lighthouse.lookout import Lookout
from lighthouse.model import (
    Hello,
    JobRecord,
    Key,
    Member,
    Notice,
    NoticeKind,
    Phase,
    Quorum,
    Refusal,
    ReplicaId,
    Welcome,
    label,
)
from lighthouse.quorum import Rules, Waiting
from lighthouse.quorum_book import QuorumBook
from lighthouse.saves import Saves
from lighthouse.slot import FINAL, Gone, Line, Slot
from lighthouse.table import Effects, Limits, Table
from lighthouse.times import Times


class JobMachine:
    """What is known of one job, and what follows from each event.

    Events about saves go to the parts `saves` and `cold_starts`, what a group says of its time to
    `times`.
    """

    def __init__(
        self,
        *,
        record: JobRecord,
        rules: Rules,
        limits: Limits,
        warm_until_s: float = float("-inf"),
        unused_quorum_id: int = 1,
        since_s: float = float("-inf"),
    ) -> None:
        """Start from what is on record, in a server that started at `since_s`.

        Members of a last quorum are not left out before `warm_until_s`. `unused_quorum_id` is
        where ids go on for a job that turns out to be older than its record.
        """
        self.times = Times(max_groups=limits.max_replicas, since_s=since_s)
        self.table = Table(record=record, limits=limits, on_end=self.times.ended)
        self._book = QuorumBook(
            record=record,
            table=self.table,
            rules=rules,
            limits=limits,
            warm_until_s=warm_until_s,
            unused_quorum_id=unused_quorum_id,
        )
        self._journal = self._book.journal
        self._rules = rules
        self._limits = limits
        self._lookout = Lookout(table=self.table, book=self._book, warm_until_s=warm_until_s)
        self._admission = Admission(table=self.table, book=self._book, warm_until_s=warm_until_s)
        self.cold_starts = ColdStarts(
            table=self.table, book=self._book, rules=rules, limits=limits, warm_until_s=warm_until_s
        )
        self.saves = Saves(table=self.table, max_groups=limits.max_replicas)
        self._pruned_s: float | None = None

    # What the shell reads.

    @property
    def job(self) -> str:
        """The job's name, or POOL."""
        return self.record.job

    @property
    def record(self) -> JobRecord:
        """What is on disk, or will be at the next tick."""
        return self._journal.record

    @property
    def quorum(self) -> Quorum | None:
        """The last quorum that this server issued."""
        return self._book.quorum

    @property
    def issued(self) -> int:
        """How many quorums this server has issued."""
        return self._book.issued

    @property
    def end_is_durable(self) -> bool:
        """Whether all that is known about the job's end is on disk."""
        return self._journal.end_is_durable

    @property
    def attempt_is_over(self) -> bool:
        """Whether the attempt of the last quorum has been given up."""
        return self._book.attempt_is_over

    @property
    def attempts_over(self) -> int:
        """How many attempts have ended early since the start."""
        return self._book.ended.count

    @property
    def expected_groups(self) -> int:
        """How many groups the operator expects, 0 for none in particular."""
        return self._rules.expected_groups

    @property
    def typical_step_s(self) -> float | None:
        """How long a step usually takes, or None before the first."""
        return self._book.pace.typical_step_s

    def groups_seen(self, now_s: float) -> int:
        """How many groups live, as far as this server sees."""
        return len(self.table.roll.living(now_s))

    def waiting(self, now_s: float) -> Waiting:
        """What stands in the way of the next quorum, as of now."""
        return self._book.waiting(now_s)

    def in_quorum(self, slot: Slot) -> bool:
        """Whether this incarnation is in the last quorum."""
        return self._book.holds(slot)

    def member_labels(self) -> list[str]:
        """The members of the last quorum, in the order of their ids, as people call them."""
        return [label(key) for key in self._book.last]

    def members_lost(self) -> list[Key]:
        """The members of the last quorum of this server that have died or left since."""
        return self._book.lost()

    def is_busy(self, now_s: float) -> bool:
        """Whether any replica lives or holds a call or a stream open."""
        holds = any(slot.lines or slot.calls for slot in self.table.slots.values())
        return holds or bool(self.table.roll.living(now_s))

    def is_idle(self, now_s: float) -> bool:
        """Whether nothing but the record would be lost with this machine."""
        return not (self.is_busy(now_s) or self.cold_starts.awaits_save(now_s)) and self._journal.is_settled

    # Events: quorum and pulse.

    def ask(self, member: Member, call: int, now_s: float) -> Effects:
        """A replica asks for a quorum and waits in `call`."""
        slot, effects = self._enter(member.id, now_s)
        if isinstance(slot, Refusal):
            return [*effects, Refuse(call=call, refusal=slot)]
        if slot.gone in FINAL:
            return [*effects, Refuse(call=call, refusal=Refusal.LEFT)]
        effects += self.table.hear(slot, now_s)
        if len(slot.calls) >= self._limits.max_calls_per_replica:
            effects.append(Refuse(call=slot.calls.pop(0), refusal=Refusal.TOO_MANY_CALLS))
        if slot.asks_again(member) or self._is_left_out(slot, member.step):
            effects += self._say_asks_again(slot, member.step)
        slot.begin_to_ask(member, call, now_s, keep_joined_s=self._rules.join_timeout_s)
        if self._book.one_more_asks(member.id.key) or effects:
            effects += self._book.reconsider(now_s)
        return effects

    def withdraw(self, id: ReplicaId, call: int, now_s: float) -> Effects:
        """The caller of `call` no longer waits."""
        slot = self.table.slots.get(id.key)
        if slot is not None and slot.id == id:
            slot.withdraw(call, now_s)
        return []

    def beat(self, id: ReplicaId, now_s: float) -> tuple[Refusal | None, Effects]:
        """A replica's pulse. Those of a dead or replaced incarnation are let be."""
        slot, effects = self.table.enter(id, now_s, keep=self.in_quorum, pulse_only=True)
        if isinstance(slot, Refusal):
            return (None if slot is Refusal.SUPERSEDED else slot), effects
        effects += self.table.hear(slot, now_s)
        return None, effects + (self._book.reconsider(now_s) if effects else [])

    # Events: the streams of the ranks.

    def attach(
        self, id: ReplicaId, hello: Hello, stream: int, now_s: float
    ) -> tuple[Welcome | Refusal | Mismatch, Effects]:
        """A rank opens its stream, or opens it again after a break that it survived."""
        stranger = self._admission.check(id, hello, now_s)
        if isinstance(stranger, Mismatch):
            self.table.turn_away(id)
        if stranger is not None:
            return stranger, self._admission.notes(id, stranger)
        slot, effects = self._enter(id, now_s)
        if isinstance(slot, Refusal):
            return slot, effects
        if slot.gone in FINAL:
            return Refusal.LEFT, effects
        rank = hello.group_rank
        before = slot.lines.get(rank)
        if before is not None:
            effects.append(CloseStream(stream=before.stream, refusal=Refusal.REATTACHED))
        slot.lines[rank], slot.known = Line(stream=stream), True
        if hello.backstop:
            self.saves.expect(now_s)
        missed = self._missed(slot, hello)
        slot.broken.discard(rank)
        if not slot.broken and slot.gone is Gone.STREAM_BROKE:
            slot.gone = None
        slot.step, slot.moved_s = max(slot.step, hello.step), now_s
        effects += self.table.hear(slot, now_s)
        mode, finished_step = self.cold_starts.start_mode(now_s), self.record.finished_step
        step = self.record.max_step if finished_step is None else finished_step
        welcome = Welcome(start_mode=mode, step=step)
        if rank == 0:
            start = welcome.start_mode.name.lower()
            effects.append(self.table.note(Happening.ATTACHED, slot, start_mode=start, step=slot.step))
        effects += [Tell(streams=(stream,), notice=notice) for notice in missed]
        return welcome, effects + self._book.reconsider(now_s)

    def pulse(self, id: ReplicaId, stream: int, now_s: float, times: RoundTimes | None = None) -> Effects:
        """The process of a rank runs, and may say how its rounds went."""
        slot, rank = self.table.on_stream(id, stream)
        if slot is not None:
            slot.lines[rank].pulse_s = now_s
            if times is not None:
                slot.lines[rank].waits.tell(times)
        return []

    def progress(
        self, id: ReplicaId, stream: int, step: int, phase: Phase, now_s: float, *, rounds: int | None = None
    ) -> Effects:
        """A group says where it is, and how many rounds it computes there, if it knows to say so."""
        slot, rank = self.table.on_stream(id, stream)
        if slot is None or slot.gone in FINAL:
            return []
        slot.lines[rank].speak(now_s)
        slot.move(step, phase, now_s, rounds=rounds)
        effects = self.table.hear(slot, now_s)
        if self._book.quorum is None and slot.is_in_attempt() and self.in_quorum(slot):
            for other in self.table.slots.values():
                if other.calls and other.step <= step and other is not slot:
                    effects += self._say_asks_again(other, other.step)
        return effects

    def abandon(self, id: ReplicaId, stream: int, quorum_id: int, cause: str, now_s: float) -> Effects:
        """A group has given an attempt up. After a restart of the server that may be an older one."""
        slot, rank = self.table.on_stream(id, stream)
        if slot is None or slot.gone in FINAL:
            return []
        slot.lines[rank].speak(now_s)
        cause = f"{slot.id.label}: {cause}"
        if self._book.quorum is None:
            return self._book.end_attempt(cause, but=slot, quorum_id=quorum_id) + self._book.reconsider(now_s)
        if quorum_id != self.record.quorum_id or not self.in_quorum(slot):
            return []
        return self._book.end_attempt(cause, but=slot) + self._book.reconsider(now_s)

    def detach(self, id: ReplicaId, stream: int, now_s: float) -> Effects:
        """A stream is over. Without a goodbye of its group before it, the group is dead now."""
        slot, rank = self.table.on_stream(id, stream)
        if slot is None:
            return []
        del slot.lines[rank]
        if slot.gone in FINAL:
            return []
        slot.broken.add(rank)
        if slot.gone is Gone.STREAM_BROKE:
            return []
        effects = self.table.lose(slot, Gone.STREAM_BROKE, now_s, rank=rank)
        return [*effects, *self._book.mourn(slot, f"rank {rank} died"), *self._book.reconsider(now_s)]

    # Events: planned leaves, and the operator's.

    def goodbye(self, id: ReplicaId, stream: int, *, finished: bool, step: int, now_s: float) -> Effects:
        """A group leaves as planned; `finished`: the job's last step, number `step`, is committed."""
        slot, _ = self.table.on_stream(id, stream)
        if slot is None or slot.gone in FINAL:
            return []
        slot.step = step
        effects = self._let_go(slot, Gone.FINISHED if finished else Gone.LEFT, now_s)
        if finished and self.record.finished_step is None:
            effects += self._finish(step, now_s)
        return effects + self._book.reconsider(now_s)

    def leave(self, id: ReplicaId, now_s: float) -> tuple[bool, Effects]:
        """One leaves as planned, without a stream, or saves nothing any more; whether it was known."""
        slot = self.table.slots.get(id.key)
        if slot is None or slot.id.text != id.text or slot.gone in FINAL:
            return self.cold_starts.saves_no_more(id), []
        return True, self._let_go(slot, Gone.LEFT, now_s) + self._book.reconsider(now_s)

    def evict(self, group: Key, cause: str, now_s: float) -> tuple[bool, Effects]:
        """Count a group out for good, or stop missing a dead one; whether there was one."""
        slot = self.table.slots.get(group)
        if slot is None or (slot.gone in FINAL and not slot.is_missed):
            return False, []
        slot.known = False
        effects = [] if slot.gone in FINAL else self._lookout.evict(slot, cause, now_s)
        self._book.amend_lineage()
        # Written before anybody is told: it must hold after a crash of this server, too.
        return True, [*self._journal.flush(now_s), *effects, *self._book.reconsider(now_s)]

    def drain(self, group: Key) -> tuple[bool, Effects]:
        """Ask a group to leave at the end of its step; whether it is there to be asked."""
        slot = self.table.slots.get(group)
        if slot is None or slot.gone is not None or not slot.lines:
            return False, []
        slot.draining = True
        told = Tell(streams=slot.streams(), notice=_DRAIN)
        return True, [self.table.note(Happening.DRAINED, slot), told]

    # The passing of time.

    def tick(self, now_s: float) -> Effects:
        """Time has passed: who fell silent, and is there a quorum now?"""
        effects = self._lookout.look(now_s)
        for slot in self.cold_starts.stranded(now_s, self.saves.newest):
            cause = "those that had the state it came for are dead: start again"
            effects += self._lookout.evict(slot, cause, now_s)
        if self._pruned_s is None:
            self._pruned_s = now_s
        if now_s - self._pruned_s > self._limits.forget_after_s / 10:
            self._pruned_s = now_s
            self.table.prune(now_s, self._limits.forget_after_s, self._must_stay)
        effects += self._book.reconsider(now_s)
        self._book.amend_lineage()
        effects += self._journal.flush(now_s)
        return effects if self._journal.proposed is not None else effects + self._book.note_waiting(now_s)

    def persisted(self, record: JobRecord, now_s: float) -> Effects:
        """A record is durable."""
        return self._book.persisted(record, now_s)

    def persist_failed(self, now_s: float) -> Effects:
        """A record could not be written: no quorum, and another try at the next tick."""
        return self._book.persist_failed(now_s)

    # The replicas.

    def _enter(self, id: ReplicaId, now_s: float) -> tuple[Slot | Refusal, Effects]:
        slot, effects = self.table.enter(id, now_s, keep=self.in_quorum)
        if isinstance(slot, Slot) and self._book.last.get(id.key, id.text) != id.text:
            effects += self._book.end_attempt(f"{id.label} was replaced by a new incarnation")
        return slot, effects

    def _is_left_out(self, slot: Slot, step: int) -> bool:
        """Whether the other members are in an attempt, at the step that this one asks for or later.

        After a restart of the server, that is how it learns of an answer that was lost.
        """
        if self._book.quorum is not None:
            return False  # each answer of this server is remembered
        slots = self.table.slots.values()
        return any(s.is_in_attempt() and s.step >= step and self.in_quorum(s) for s in slots if s is not slot)

    def _say_asks_again(self, slot: Slot, step: int) -> Effects:
        if not self.in_quorum(slot):
            return []
        return self._book.end_attempt(f"{slot.id.label} asks for step {step} again", but=slot)

    def _let_go(self, slot: Slot, gone: Gone, now_s: float) -> Effects:
        effects: Effects = [Refuse(call=call, refusal=Refusal.LEFT) for call in slot.take_calls()]
        return effects + self.table.lose(slot, gone, now_s)

    def _must_stay(self, slot: Slot) -> bool:
        """Whether its row is wanted however long it has been gone."""
        return self.in_quorum(slot) or (slot.is_missed and self.record.finished_step is None)

    def _missed(self, slot: Slot, hello: Hello) -> list[Notice]:
        """What a rank may not have heard while its stream was broken."""
        notices = [_DRAIN] if slot.draining else []
        if self._book.quorum is None:
            return notices + (self._book.ended.since(0) if self._book.may_hold(slot) else [])
        if self.in_quorum(slot):
            return notices + self._book.ended.since(self.record.quorum_id)
        if slot.has_asked or slot.broken or slot.returning or hello.step > 0:
            cause = f"the job went on without {slot.id.label}"
            notices.append(over_notice(self.record.quorum_id, cause))
        return notices

    # The record.

    def _finish(self, step: int, now_s: float) -> Effects:
        self.times.finish(now_s)
        self._journal.amend(max_step=max(step, self.record.max_step), finished_step=step)
        note = Note(happening=Happening.FINISHED, fields={"job": self.job, "step": step})
        notice = Notice(kind=NoticeKind.FINISHED, cause=f"the job is finished: step {step} was the last")
        late = [s for s in self.table.slots.values() if s.gone not in FINAL and not self.in_quorum(s)]
        told = Tell(streams=tuple(stream for slot in late for stream in slot.streams()), notice=notice)
        return [note, *([told] if told.streams else []), *self._journal.flush(now_s)]


_DRAIN = Notice(kind=NoticeKind.DRAIN, cause="asked to leave at the end of the step")
