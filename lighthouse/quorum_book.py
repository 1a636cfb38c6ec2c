"""The quorums of one job: what the decision says now, what is proposed, written and issued. No I/O."""

from dataclasses import replace

from lighthouse.effects import Answer, Happening, Note, Tell
from lighthouse.ended import EndedAttempts, over_notice
from lighthouse.journal import Journal
from lighthouse.model import JobRecord, Key, Member, Quorum, label, parse_replica_id
from lighthouse.pace import Pace
from lighthouse.patience import Patience
from lighthouse.quorum import Ready, Reason, Rules, Waiting, decide
from lighthouse.situation import situation_of
from lighthouse.slot import Slot
from lighthouse.table import Effects, Limits, Table


class QuorumBook:
    """Knows the last quorum and makes the next one."""

    def __init__(
        self,
        *,
        record: JobRecord,
        table: Table,
        rules: Rules,
        limits: Limits,
        warm_until_s: float,
        unused_quorum_id: int,
    ) -> None:
        """Start from what is on record.

        `unused_quorum_id` is above all ids of a job that has steps behind it and no record.
        """
        self.rules = rules
        self.journal = Journal(record, step_record_s=limits.step_record_s)
        self.ended = EndedAttempts(record.job)
        self.pace = Pace(limits.pace)
        self.patience = Patience(job=record.job, note_after_s=limits.waiting_note_s)
        self.last = {parse_replica_id(text).key: text for text in record.members}
        self.quorum: Quorum | None = None
        self.issued = 0
        self._table = table
        self._warm_until_s = warm_until_s
        self.unused_quorum_id = unused_quorum_id
        self._blockers: set[Key] = set()

    @property
    def record(self) -> JobRecord:
        """What is on disk, or will be at the next tick."""
        return self.journal.record

    @property
    def attempt_is_over(self) -> bool:
        """Whether the attempt of the last quorum has been given up."""
        return self.record.quorum_id in self.ended

    def lost(self) -> list[Key]:
        """The members of the last quorum of this server that no longer count."""
        slots, last = self._table.slots, self.last.items() if self.quorum else ()
        return [key for key, text in last if key not in slots or not slots[key].counts_as(text)]

    def holds(self, slot: Slot) -> bool:
        """Whether this incarnation is in the last quorum."""
        return self.last.get(slot.id.key) == slot.id.text

    def may_hold(self, slot: Slot) -> bool:
        """Whether it may be in the last attempt, as far as a server knows that may have just begun."""
        known = self.quorum is not None
        return self.holds(slot) if known else self.last.get(slot.id.key, slot.id.text) == slot.id.text

    def waiting(self, now_s: float) -> Waiting:
        """What stands in the way of the next quorum, as of now."""
        decision = self._decide(now_s)
        return decision if isinstance(decision, Waiting) else self.patience.waiting

    # Attempts that end early.

    def end_attempt(self, cause: str, *, but: Slot | None = None, quorum_id: int | None = None) -> Effects:
        """An attempt is over, that of the last quorum if none is named: tell its members once.

        Of one that an earlier life of the server began, only the members know who they are.
        """
        quorum_id = self.record.quorum_id if quorum_id is None else quorum_id
        if self.rules.torchft_rules or quorum_id == 0:
            return []
        slots = [slot for slot in self._table.slots.values() if slot is not but and self.may_hold(slot)]
        return self.ended.add(quorum_id, cause, slots)

    def mourn(self, slot: Slot, cause: str) -> Effects:
        """A member is lost: those that are in an attempt with it must not wait for it.

        A server that remembers no quorum must take everybody for a member.
        """
        forgotten = self.quorum is None and not self.last
        lost = forgotten or self.holds(slot)
        return self.end_attempt(f"{slot.id.label}: {cause}") if lost else []

    def begin_anew(self, record: JobRecord, cause: str, now_s: float) -> Effects:
        """Nobody of the last quorum has the state any more, as this record says, which is on disk."""
        effects = self.end_attempt(cause)
        self.journal.adopt(record, now_s)
        self.last, self.quorum = {}, None
        self._blockers = set()
        return effects + self.reconsider(now_s)

    # The next quorum.

    def one_more_asks(self, key: Key) -> bool:
        """Whether that may complete a quorum: while members are missing, one more decides nothing."""
        self._blockers.discard(key)
        return not self._blockers

    def reconsider(self, now_s: float) -> Effects:
        """Make the next quorum if there can be one."""
        if self.journal.proposed is not None:
            return []
        decision = self._decide(now_s)
        if isinstance(decision, Ready):
            return self._propose(decision.members, now_s)
        self._blockers = set(decision.missing) if decision.reason is Reason.MEMBER_NOT_ASKING else set()
        self.patience.wait(decision, now_s)
        return []

    def persisted(self, record: JobRecord, now_s: float) -> Effects:
        """A record is durable: a quorum that waited for it is issued."""
        quorum, changed = self.journal.written(record, now_s)
        return [] if quorum is None else self._issue(quorum, now_s, changed=changed)

    def persist_failed(self, now_s: float) -> Effects:
        """A record could not be written: no quorum, and another try at the next tick."""
        proposed = self.journal.failed()
        if proposed is not None:
            waiting = Waiting(reason=Reason.STORE_UNWRITABLE, have=len(proposed.members))
            self.patience.wait(waiting, now_s)
        return self.note_waiting(now_s)

    def note_waiting(self, now_s: float) -> Effects:
        """A line for the log, once, when a quorum is held up for long."""
        return [*self.patience.note(now_s)]

    def amend_lineage(self) -> None:
        """Put into the record who holds which place."""
        lineage = self._table.lineage
        if lineage.changed:
            lineage.changed = False
            self.journal.amend(holders=lineage.holders(), tombs=lineage.tombs())

    def _decide(self, now_s: float) -> Ready | Waiting:
        situation = situation_of(
            self._table,
            self.last,
            now_s,
            warm_until_s=self._warm_until_s,
            record_step=self.record.max_step,
        )
        return decide(situation, self.rules, now_s)

    def _propose(self, members: tuple[Member, ...], now_s: float) -> Effects:
        changed = self._is_change(members)
        quorum = Quorum(quorum_id=self.record.quorum_id + changed, members=members)
        if self.record.quorum_id == 0 and quorum.max_step > 0:
            quorum = replace(quorum, quorum_id=self.unused_quorum_id)
        self.amend_lineage()
        write = self.journal.propose(quorum, changed=changed)
        return self._issue(quorum, now_s, changed=False) if write is None else [write]

    def _is_change(self, members: tuple[Member, ...]) -> bool:
        """Whether the members' process group must be made anew."""
        if self.quorum is None or self.attempt_is_over:
            return True
        if any(member.commit_failures > 0 for member in members):
            return True
        return [m.place() for m in members] != [m.place() for m in self.quorum.members]

    def _issue(self, quorum: Quorum, now_s: float, *, changed: bool) -> Effects:
        self.quorum = quorum
        self.pace.quorum(quorum.max_step, now_s)
        self.last = {member.id.key: member.id.text for member in quorum.members}
        self._blockers = set(self.last)
        self.patience.end()
        self.issued += 1
        calls: list[int] = []
        for member in quorum.members:
            slot = self._table.slots.get(member.id.key)
            if slot is not None and slot.id == member.id:
                slot.answered = member
                calls += slot.take_calls()
        answer = Answer(quorum=quorum, calls=tuple(calls))
        return [answer, *self._tell_left_out(), *self._notes(quorum)] if changed else [answer]

    def _tell_left_out(self) -> Effects:
        """Groups that are still in an earlier attempt, and of which this quorum takes no account."""
        effects: Effects = []
        for slot in self._table.slots.values():
            if slot.lines and slot.is_in_attempt() and not self.holds(slot):
                notice = over_notice(self.record.quorum_id, f"the job went on without {slot.id.label}")
                effects.append(Tell(streams=slot.streams(), notice=notice))
        return effects

    def _notes(self, quorum: Quorum) -> list[Note]:
        job, expected = self.record.job, self.rules.expected_groups
        names = ", ".join(label(member.id.key) for member in quorum.members)
        fields = {"job": job, "quorum_id": quorum.quorum_id, "step": quorum.max_step, "members": names}
        notes = [Note(happening=Happening.QUORUM, fields=fields)]
        if len(quorum.members) < expected:
            seen = {"job": job, "seen": len(quorum.members), "expected": expected}
            notes.append(Note(happening=Happening.FEWER, fields=seen))
        return notes
