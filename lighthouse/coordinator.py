"""Runs the jobs' machines: hands them events with the time, and carries out what they ask for.

Everything here happens on the event loop's thread. A write to the store blocks it for one fsync.
"""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import structlog

from lighthouse.clock import Clock
from lighthouse.cold_start import NOT_ATTACHED_AGAIN
from lighthouse.config import LighthouseConfig
from lighthouse.effects import Answer, CloseStream, Effect, Happening, Note, Persist, Refuse, Tell
from lighthouse.events import EventHub
from lighthouse.identity import Mismatch
from lighthouse.jobs import Jobs
from lighthouse.lag import RoundTimes
from lighthouse.machine import JobMachine
from lighthouse.model import (
    ColdStartAnswer,
    Hello,
    JobRecord,
    Member,
    Notice,
    Phase,
    Refusal,
    ReplicaId,
    SavesFound,
    Welcome,
    parse_replica_id,
)
from lighthouse.outbox import Outbox
from lighthouse.saves import Saved
from lighthouse.store import Store, StoreError
from lighthouse.turned_away import TurnedAway
from lighthouse.wire import encode_reply

_log: Any = structlog.get_logger("lighthouse")


class Coordinator:
    """All jobs, their waiting calls and open streams."""

    def __init__(self, config: LighthouseConfig, store: Store, clock: Clock) -> None:
        """Take up what is on record. Raises StoreError if it cannot be read."""
        self._clock = clock
        self._started_s = clock.now_s()
        self._jobs = Jobs(config, store, now_s=self._started_s, wall_s=clock.wall_s())
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[bytes | Refusal]] = {}
        self._streams: dict[int, Outbox] = {}
        self._unwritable = ""
        self._admits_all = config.token_file is None
        self.events = EventHub()
        self.turned_away = TurnedAway()

    # What others read.

    @property
    def machines(self) -> Mapping[str, JobMachine]:
        """The machines by job. Only to be read."""
        return self._jobs.machines

    @property
    def store_trouble(self) -> str:
        """The sentence of the last write if it failed, else an empty text."""
        return self._unwritable

    def now_s(self) -> float:
        """The time that the machines see, in seconds."""
        return self._clock.now_s()

    def uptime_s(self) -> float:
        """Seconds since the start, less pauses of this process."""
        return self._clock.now_s() - self._started_s

    # Events from the services.

    async def ask(self, member: Member) -> bytes | Refusal:
        """The encoded reply with the quorum, once there is one. Cancelling takes the request back."""
        if not self._is_admitted(member.id):
            self.turn_away("Quorum", Refusal.NOT_ADMITTED)
            return Refusal.NOT_ADMITTED
        machine = self._machine_of(member.id.job)
        if isinstance(machine, Refusal):
            return machine
        call = next(self._numbers)
        future: asyncio.Future[bytes | Refusal] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        try:
            self._carry_out(machine, machine.ask(member, call, self._clock.now_s()))
            return await future
        finally:
            if self._calls.pop(call, None) is not None:
                self._carry_out(machine, machine.withdraw(member.id, call, self._clock.now_s()))

    def beat(self, id: ReplicaId) -> Refusal | None:
        """A replica's pulse; a refusal if there is no room to remember it.

        With a token set, one that has not attached is ignored: a Manager beats before its group attaches.
        """
        if not self._is_admitted(id):
            self.turned_away.ignore("Heartbeat")
            return None
        machine = self._machine_of(id.job)
        if isinstance(machine, Refusal):
            return machine
        refusal, effects = machine.beat(id, self._clock.now_s())
        self._carry_out(machine, effects)
        return refusal

    def attach(self, hello: Hello) -> "Stream | Refusal | Mismatch":
        """Open the stream of a rank."""
        id = parse_replica_id(hello.replica_id)
        machine = self._machine_of(id.job)
        if isinstance(machine, Refusal):
            return machine
        number = next(self._numbers)
        outbox = Outbox()
        welcome, effects = machine.attach(id, hello, number, self._clock.now_s())
        if isinstance(welcome, Welcome):
            self._streams[number] = outbox
        self._carry_out(machine, effects)
        if not isinstance(welcome, Welcome):
            return welcome
        return Stream(coordinator=self, machine=machine, id=id, number=number, welcome=welcome, outbox=outbox)

    def tick(self) -> None:
        """Time has passed: look at every job."""
        # Read also when there is no job: the clock takes a long time without readings for a pause.
        now_s = self._clock.now_s()
        for machine in list(self._jobs.machines.values()):
            self._carry_out(machine, machine.tick(now_s))

    def forget(self, job: str) -> bool:
        """Drop what is known of a job; whether there was anything.

        Raises JobAliveError while a group of it lives, StoreError if the disk refuses.
        """
        return self._jobs.forget(job, self._clock.now_s())

    def leave(self, id: ReplicaId) -> bool:
        """An incarnation leaves as planned, or saves nothing any more; whether it was known."""
        machine = self._jobs.machines.get(id.job)
        if machine is None:
            return False
        known, effects = machine.leave(id, self._clock.now_s())
        self._carry_out(machine, effects)
        return known

    def evict(self, job: str, group: int) -> bool:
        """Count a group out, as the operator wants it; whether it was there to be counted out.

        Raises StoreError, and has done nothing, while the disk takes no record: a restart of the
        server would let the group in again.
        """
        machine = self._jobs.machines.get(job)
        if machine is None or group not in machine.table.slots:
            return False
        self._jobs.write(machine.record)
        known, effects = machine.evict(group, "evicted by the operator", self._clock.now_s())
        self._carry_out(machine, effects)
        return known

    def drain(self, job: str, group: int) -> bool:
        """Ask a group to leave at the end of its step; whether it is there to be asked."""
        machine = self._jobs.machines.get(job)
        if machine is None:
            return False
        known, effects = machine.drain(group)
        self._carry_out(machine, effects)
        return known

    def propose_save(self, id: ReplicaId, found: SavesFound | None) -> ColdStartAnswer | Refusal:
        """What a group is to do that may have nobody to heal from.

        Raises StoreError while the disk takes no record; then nothing was decided.
        """
        now_s, machine = self._clock.now_s(), self._jobs.machines.get(id.job)
        if machine is None:
            return NOT_ATTACHED_AGAIN if self._jobs.is_warming_up(now_s) else Refusal.UNKNOWN
        outcome, effects = machine.cold_starts.propose(id, found, now_s)
        self._carry_out(machine, effects)
        if isinstance(outcome, Refusal):
            return outcome
        if outcome.record is not None:
            self._jobs.write(outcome.record)
            self._carry_out(machine, machine.cold_starts.recorded(id, outcome.record, now_s))
        return outcome.answer

    def hang_up(self) -> None:
        """End all waiting calls and open streams, as the server goes down."""
        for call in list(self._calls):
            self._end_call(call, Refusal.GOING_DOWN)
        for stream in list(self._streams):
            self._end_stream(stream, Refusal.GOING_DOWN)
        self.events.end()

    def turn_away(self, method: str, refusal: Refusal) -> None:
        """Note that a call is refused because of who makes it."""
        if count := self.turned_away.count(method, self._clock.now_s()):
            _log.warning("calls_turned_away", method=method, refusal=refusal.value, since_last_note=count)

    def _is_admitted(self, id: ReplicaId) -> bool:
        """Whether it may speak on torchft's wire: where a token is set, once it has attached."""
        if self._admits_all:
            return True
        machine = self._jobs.machines.get(id.job)
        return machine is not None and machine.table.has_admitted(id)

    def _machine_of(self, job: str) -> JobMachine | Refusal:
        return self._jobs.machine_of(job, self._clock.now_s())

    # Effects.

    def _carry_out(self, machine: JobMachine, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(record=record):
                    self._persist(machine, record)
                case Answer(quorum=quorum, calls=calls):
                    reply = encode_reply(quorum, self._clock.wall_s())
                    for call in calls:
                        self._end_call(call, reply)
                case Refuse(call=call, refusal=refusal):
                    self._end_call(call, refusal)
                case Tell(streams=streams, notice=notice):
                    self._tell(streams, notice)
                case CloseStream(stream=stream, refusal=refusal):
                    self._end_stream(stream, refusal)
                case Note(happening=happening, fields=fields):
                    _write_note(happening, fields)
                    self.events.publish(self._clock.wall_s(), happening.value, fields)

    def _tell(self, streams: tuple[int, ...], notice: Notice) -> None:
        for stream in streams:
            outbox = self._streams.get(stream)
            if outbox is not None:
                outbox.put(notice)

    def _persist(self, machine: JobMachine, record: JobRecord) -> None:
        try:
            self._jobs.write(record)
        except StoreError as error:
            if self._unwritable != str(error):
                _log.error(Happening.NOT_RECORDED.value, job=record.job, error=str(error))
            self._unwritable = str(error)
            self._carry_out(machine, machine.persist_failed(self._clock.now_s()))
        else:
            self._unwritable = ""
            self._carry_out(machine, machine.persisted(record, self._clock.now_s()))

    def _end_call(self, call: int, outcome: bytes | Refusal) -> None:
        future = self._calls.pop(call, None)
        if future is not None and not future.done():
            future.set_result(outcome)

    def _end_stream(self, stream: int, refusal: Refusal) -> None:
        outbox = self._streams.pop(stream, None)
        if outbox is not None:
            outbox.put(refusal)

    # Events from a stream.

    def pulse(self, stream: "Stream", seconds: Mapping[str, float], times: RoundTimes | None) -> None:
        """The process of a rank runs, and that of rank 0 may say where its time went."""
        now_s, machine = self._clock.now_s(), stream.machine
        self._carry_out(machine, machine.pulse(stream.id, stream.number, now_s, times))
        if seconds:
            machine.times.told(machine.table, stream.id, stream.number, seconds, now_s)

    def progress(self, stream: "Stream", step: int, phase: Phase, rounds: int | None) -> None:
        """A group says where it is, and how many rounds it computes there."""
        effects = stream.machine.progress(
            stream.id, stream.number, step, phase, self._clock.now_s(), rounds=rounds
        )
        self._carry_out(stream.machine, effects)

    def abandon(self, stream: "Stream", quorum_id: int, cause: str) -> None:
        """A group has given an attempt up."""
        effects = stream.machine.abandon(stream.id, stream.number, quorum_id, cause, self._clock.now_s())
        self._carry_out(stream.machine, effects)

    def saved(self, stream: "Stream", save: Saved) -> None:
        """A group has made a save."""
        effects = stream.machine.saves.saved(stream.id, stream.number, save, self._clock.now_s())
        self._carry_out(stream.machine, effects)

    def save_failed(self, stream: "Stream", step: int, cause: str) -> None:
        """A save of a group has failed."""
        effects = stream.machine.saves.failed(stream.id, stream.number, step, cause, self._clock.now_s())
        self._carry_out(stream.machine, effects)

    def goodbye(self, stream: "Stream", *, finished: bool, step: int, may_save_s: float = 0.0) -> bool:
        """A group leaves; whether what it said is on record."""
        now_s = self._clock.now_s()
        if not finished:
            stream.machine.cold_starts.may_save(stream.id, stream.number, may_save_s, now_s)
        effects = stream.machine.goodbye(stream.id, stream.number, finished=finished, step=step, now_s=now_s)
        self._carry_out(stream.machine, effects)
        return stream.machine.end_is_durable

    def detach(self, stream: "Stream") -> None:
        """The stream is over, by whatever cause."""
        self._streams.pop(stream.number, None)
        effects = stream.machine.detach(stream.id, stream.number, self._clock.now_s())
        self._carry_out(stream.machine, effects)


class Stream:
    """A rank's open stream. `outbox` holds what it is to be told; a refusal there ends it."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        machine: JobMachine,
        id: ReplicaId,
        number: int,
        welcome: Welcome,
        outbox: Outbox,
    ) -> None:
        self.machine = machine
        self.id = id
        self.number = number
        self.welcome = welcome
        self.outbox = outbox
        self._coordinator = coordinator

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exception: object) -> None:
        self._coordinator.detach(self)

    def pulse(self, seconds: Mapping[str, float] | None = None, times: RoundTimes | None = None) -> None:
        """The process of this rank runs. `seconds`: where the time of its group went so far, by cause.

        `times`: how the rounds of this rank went.
        """
        self._coordinator.pulse(self, seconds or {}, times)

    def progress(self, step: int, phase: Phase, rounds: int | None = None) -> None:
        """The group is at this step and phase, where it computes `rounds`. None: it did not say."""
        self._coordinator.progress(self, step, phase, rounds)

    def abandon(self, quorum_id: int, cause: str) -> None:
        """The group has given this attempt up."""
        self._coordinator.abandon(self, quorum_id, cause)

    def saved(self, save: Saved) -> None:
        """The group has made a save."""
        self._coordinator.saved(self, save)

    def save_failed(self, step: int, cause: str) -> None:
        """A save of the group has failed."""
        self._coordinator.save_failed(self, step, cause)

    def goodbye(self, *, finished: bool, step: int, may_save_s: float = 0.0) -> bool:
        """The group leaves, and may save for `may_save_s` after it; whether what it said is on record."""
        return self._coordinator.goodbye(self, finished=finished, step=step, may_save_s=may_save_s)


_GRAVE = (
    Happening.FEWER,
    Happening.GONE,
    Happening.NOT_RECORDED,
    Happening.REFUSED,
    Happening.RESTORE_DECIDED,
    Happening.SAVE_FAILED,
    Happening.SLOW,
    Happening.SUSPECT,
    Happening.WAITING,
)


def _write_note(happening: Happening, fields: Mapping[str, object]) -> None:
    write = _log.warning if happening in _GRAVE else _log.info
    write(happening.value, **fields)
