"""One job: events and the time go in, effects come out. No I/O, no clock, no log.

Every method takes the time of the event. A quorum is first proposed (Persist), and only when its
record is durable are the callers answered (Answer).
"""

from dataclasses import replace

from lighthouse.effects import Answer, CloseStream, Happening, Note, Persist, Refuse
from lighthouse.model import (
    Hello,
    JobRecord,
    Key,
    Member,
    Phase,
    Quorum,
    Refusal,
    ReplicaId,
    StartMode,
    Welcome,
    label,
    parse_replica_id,
)
from lighthouse.quorum import Ask, Ready, Reason, Rules, Situation, Waiting, decide, sentence
from lighthouse.slot import Gone, Slot
from lighthouse.table import Effects, Limits, Table


class JobMachine:
    """What is known of one job, and what follows from each event."""

    def __init__(
        self, *, record: JobRecord, rules: Rules, limits: Limits, warm_until_s: float = float("-inf")
    ) -> None:
        """Start from what is on record.

        Members of a last quorum are not left out before `warm_until_s`.
        """
        self.table = Table(job=record.job, limits=limits)
        self.issued = 0
        self._rules = rules
        self._limits = limits
        self._warm_until_s = warm_until_s
        self._record = record
        self._durable = record
        self._durable_at_s = float("-inf")
        self._pruned_s = float("-inf")
        self._quorum: Quorum | None = None
        self._proposed: Quorum | None = None
        self._last = {parse_replica_id(text).key: text for text in record.members}
        self._blockers: set[Key] = set()
        self._decision = Waiting(reason=Reason.NO_ASKS)
        self._waiting_since_s: float | None = None
        self._waiting_noted = False

    # What the shell reads.

    @property
    def job(self) -> str:
        """The job's name, or POOL."""
        return self._record.job

    @property
    def record(self) -> JobRecord:
        """What is on disk, or will be at the next tick."""
        return self._record

    @property
    def quorum(self) -> Quorum | None:
        """The last quorum that this server issued."""
        return self._quorum

    @property
    def end_is_durable(self) -> bool:
        """Whether all that is known about the job's end is on disk."""
        return self._record.finished_step == self._durable.finished_step

    def waiting(self, now_s: float) -> Waiting:
        """What stands in the way of the next quorum, as of now."""
        decision = decide(self._situation(now_s), self._rules, now_s)
        return decision if isinstance(decision, Waiting) else self._decision

    def in_quorum(self, slot: Slot) -> bool:
        """Whether this incarnation is in the last quorum."""
        return self._last.get(slot.id.key) == slot.id.text

    def member_labels(self) -> list[str]:
        """The members of the last quorum, in the order of their ids, as people call them."""
        return [label(key) for key in self._last]

    def is_busy(self, now_s: float) -> bool:
        """Whether any replica lives or holds a call or a stream open."""
        holds = any(slot.stream is not None or slot.calls for slot in self.table.slots.values())
        return holds or bool(self.table.roll.living(now_s))

    def is_idle(self, now_s: float) -> bool:
        """Whether nothing but the record would be lost with this machine."""
        return not self.is_busy(now_s) and self._durable == self._record

    # Events.

    def ask(self, member: Member, call: int, now_s: float) -> Effects:
        """A replica asks for a quorum and waits in `call`."""
        slot, effects = self._enter(member.id, now_s)
        if isinstance(slot, Refusal):
            return [*effects, Refuse(call=call, refusal=slot)]
        if slot.gone in (Gone.LEFT, Gone.FINISHED):
            return [*effects, Refuse(call=call, refusal=Refusal.LEFT)]
        effects += self.table.hear(slot, now_s)
        if len(slot.calls) >= self._limits.max_calls_per_replica:
            effects.append(Refuse(call=slot.calls.pop(0), refusal=Refusal.TOO_MANY_CALLS))
        slot.begin_to_ask(member, call, now_s, keep_joined_s=self._rules.join_timeout_s)
        # While members are still missing, one more ask decides nothing; the tick looks again.
        self._blockers.discard(member.id.key)
        if effects or not self._blockers:
            effects += self._reconsider(now_s)
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
        return None, effects + (self._reconsider(now_s) if effects else [])

    def attach(
        self, id: ReplicaId, hello: Hello, stream: int, now_s: float
    ) -> tuple[Welcome | Refusal, Effects]:
        """A group opens its stream, or opens it again after a break that it survived."""
        slot, effects = self._enter(id, now_s)
        if isinstance(slot, Refusal):
            return slot, effects
        if slot.gone in (Gone.LEFT, Gone.FINISHED):
            return Refusal.LEFT, effects
        if slot.stream is not None:
            effects.append(CloseStream(stream=slot.stream, refusal=Refusal.SUPERSEDED))
        slot.gone = None
        slot.stream = stream
        slot.step = max(slot.step, hello.step)
        effects += self.table.hear(slot, now_s)
        welcome = self._welcome(id, now_s)
        start = welcome.start_mode.name.lower()
        effects.append(self.table.note(Happening.ATTACHED, slot, start_mode=start, step=slot.step))
        return welcome, effects + self._reconsider(now_s)

    def progress(self, id: ReplicaId, stream: int, step: int, phase: Phase, now_s: float) -> Effects:
        """A group says where it is."""
        slot = self._attached(id, stream)
        if slot is None or slot.gone in (Gone.LEFT, Gone.FINISHED):
            return []
        slot.step, slot.phase = step, phase
        return self.table.hear(slot, now_s)

    def detach(self, id: ReplicaId, stream: int, now_s: float) -> Effects:
        """A stream is over. Without a goodbye before it, the group is dead now."""
        slot = self._attached(id, stream)
        if slot is None:
            return []
        slot.stream = None
        if slot.gone is not None and slot.gone is not Gone.SILENT:
            return []
        return [*self.table.lose(slot, Gone.STREAM_BROKE), *self._reconsider(now_s)]

    def goodbye(self, id: ReplicaId, stream: int, *, finished: bool, step: int, now_s: float) -> Effects:
        """A group leaves as planned; `finished`: the job's last step, number `step`, is committed."""
        slot = self._attached(id, stream)
        if slot is None:
            return []
        slot.step = step
        effects: Effects = [Refuse(call=call, refusal=Refusal.LEFT) for call in slot.take_calls()]
        effects += self.table.lose(slot, Gone.FINISHED if finished else Gone.LEFT)
        if finished and self._record.finished_step is None:
            effects += self._finish(step, now_s)
        return effects + self._reconsider(now_s)

    def tick(self, now_s: float) -> Effects:
        """Time has passed: who fell silent, and is there a quorum now?"""
        effects = self.table.mark_silent(now_s)
        if now_s - self._pruned_s > self._limits.forget_after_s / 10:
            self._pruned_s = now_s
            self.table.prune(now_s, self._limits.forget_after_s, self.in_quorum)
        effects += self._reconsider(now_s)
        effects += self._flush(now_s)
        return effects + self._note_waiting(now_s)

    def persisted(self, record: JobRecord, now_s: float) -> Effects:
        """A record is durable."""
        changed = record.quorum_id != self._durable.quorum_id
        self._durable, self._durable_at_s = record, now_s
        proposed = self._proposed
        if proposed is None or proposed.quorum_id != record.quorum_id:
            return []
        self._record = replace(record, finished_step=self._record.finished_step)
        return self._issue(proposed, changed=changed)

    def persist_failed(self, now_s: float) -> Effects:
        """A record could not be written: no quorum, and another try at the next tick."""
        proposed, self._proposed = self._proposed, None
        if proposed is not None:
            self._decision = Waiting(reason=Reason.STORE_UNWRITABLE, have=len(proposed.members))
            self._waiting_since_s = self._waiting_since_s or now_s
        return []

    # The replicas.

    def _enter(self, id: ReplicaId, now_s: float) -> tuple[Slot | Refusal, Effects]:
        return self.table.enter(id, now_s, keep=self.in_quorum)

    def _attached(self, id: ReplicaId, stream: int) -> Slot | None:
        slot = self.table.slots.get(id.key)
        return slot if slot is not None and slot.stream == stream else None

    def _welcome(self, id: ReplicaId, now_s: float) -> Welcome:
        if self._record.finished_step is not None:
            return Welcome(start_mode=StartMode.FINISHED, step=self._record.finished_step)
        others = self.table.roll.living(now_s) - {id.key}
        heal = bool(others) or self._record.max_step > 0
        return Welcome(start_mode=StartMode.HEAL if heal else StartMode.FRESH, step=self._record.max_step)

    # The decision.

    def _situation(self, now_s: float) -> Situation:
        living = self.table.roll.living(now_s)
        slots = [(key, self.table.slots[key]) for key in living]
        asks = {
            key: Ask(member=slot.member, joined_s=slot.joined_s)
            for key, slot in slots
            if slot.calls and slot.member is not None and slot.joined_s is not None
        }
        members = frozenset(key for key, slot in slots if self.in_quorum(slot))
        return Situation(
            asks=asks,
            living=living,
            asked=frozenset(key for key, slot in slots if slot.has_asked),
            members=members,
            had_quorum=bool(self._last),
            members_lost=len(members) < len(self._last),
            unheard=self._unheard() if now_s < self._warm_until_s else frozenset(),
            warm_until_s=self._warm_until_s,
        )

    def _unheard(self) -> frozenset[Key]:
        """Members on record that have not asked since the start and are not known to be dead.

        Another incarnation that has attached or asked proves that the one on record is dead.
        """
        return frozenset(
            key
            for key, text in self._last.items()
            if (slot := self.table.slots.get(key)) is None
            or not (slot.has_asked or slot.gone or (slot.id.text != text and slot.stream is not None))
        )

    def _reconsider(self, now_s: float) -> Effects:
        if self._proposed is not None:
            return []
        decision = decide(self._situation(now_s), self._rules, now_s)
        if isinstance(decision, Ready):
            return self._propose(decision.members)
        self._blockers = set(decision.missing) if decision.reason is Reason.MEMBER_NOT_ASKING else set()
        if decision.reason is Reason.NO_ASKS:
            self._waiting_since_s, self._waiting_noted = None, False
        elif self._waiting_since_s is None:
            self._waiting_since_s = now_s
        self._decision = decision
        return []

    def _propose(self, members: tuple[Member, ...]) -> Effects:
        changed = self._is_change(members)
        quorum = Quorum(quorum_id=self._record.quorum_id + changed, members=members)
        record = replace(
            self._record,
            quorum_id=quorum.quorum_id,
            members=tuple(member.id.text for member in members),
            max_step=max(self._record.max_step, quorum.max_step),
        )
        # The first step is recorded at once: from then on nobody starts the job afresh.
        if changed or (record.max_step > 0) != (self._durable.max_step > 0):
            self._proposed = quorum
            return [Persist(record=record)]
        self._record = record
        return self._issue(quorum, changed=False)

    def _is_change(self, members: tuple[Member, ...]) -> bool:
        """Whether the members' process group must be made anew."""
        if self._quorum is None or any(member.commit_failures > 0 for member in members):
            return True
        return [m.place() for m in members] != [m.place() for m in self._quorum.members]

    def _issue(self, quorum: Quorum, *, changed: bool) -> Effects:
        self._proposed = None
        self._quorum = quorum
        self._last = {member.id.key: member.id.text for member in quorum.members}
        self._blockers = set(self._last)
        self._decision = Waiting(reason=Reason.NO_ASKS)
        self._waiting_since_s, self._waiting_noted = None, False
        self.issued += 1
        calls: list[int] = []
        for member in quorum.members:
            slot = self.table.slots.get(member.id.key)
            if slot is not None and slot.id == member.id:
                calls += slot.take_calls()
        answer = Answer(quorum=quorum, calls=tuple(calls))
        return [answer, self._quorum_note(quorum)] if changed else [answer]

    # The record.

    def _finish(self, step: int, now_s: float) -> Effects:
        self._record = replace(self._record, max_step=max(step, self._record.max_step), finished_step=step)
        note = Note(happening=Happening.FINISHED, fields={"job": self.job, "step": step})
        return [note, *self._flush(now_s)]

    def _flush(self, now_s: float) -> Effects:
        """Write what is not durable yet; the bare step only every now and then.

        A record that trails by some steps lets nobody in wrongly: each change of membership
        writes it, so it is never behind the step of a group that was left out.
        """
        if self._record == self._durable or self._proposed is not None:
            return []
        due = now_s - self._durable_at_s >= self._limits.step_record_s
        return [Persist(record=self._record)] if due or not self.end_is_durable else []

    # The log.

    def _quorum_note(self, quorum: Quorum) -> Note:
        names = ", ".join(member.id.label for member in quorum.members)
        fields = {"job": self.job, "quorum_id": quorum.quorum_id, "step": quorum.max_step, "members": names}
        return Note(happening=Happening.QUORUM, fields=fields)

    def _note_waiting(self, now_s: float) -> Effects:
        """Say once what holds a quorum up, when it takes long."""
        since_s = self._waiting_since_s
        if self._waiting_noted or since_s is None or now_s - since_s < self._limits.waiting_note_s:
            return []
        self._waiting_noted = True
        fields = {"job": self.job, "reason": self._decision.reason.value}
        return [Note(happening=Happening.WAITING, fields={**fields, "why": sentence(self._decision)})]
