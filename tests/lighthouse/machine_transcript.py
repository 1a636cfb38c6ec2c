"""A tiny language for scenarios: each line is an event, its effects are written below it.

0.0 ask 0a 5        incarnation a of group 0 asks at step 5 (`fail`: its last commit failed)
0.1 beat 1a         its heartbeat; likewise `attach 1a [STEP]`, `cancel 1a`
0.1 watch 1a 1      its rank 1 opens its stream; `cut 1a RANK` breaks one, `pulse 1a RANK`
0.1 tell 1a 5 COMPUTE [ROUNDS]   its progress; `abandon 1a QUORUM`, `drain 1`, `evict 1`
0.2 goodbye 1a 7    it leaves at step 7 (`finished`: the job is done; `saves 20`: it may save for so long)
0.2 leave 1a        it leaves without a stream to say so, or after its goodbye saves nothing any more
0.3 propose 1a      it asks how to start; `propose 1a none`: it has looked for saves in vain
0.3 propose 1a 6 2  it has found the save of step 6, quorum 2
                    what it has seen beside: `seen 9`, one of quorum 9; `torn 9`, and none can be loaded
0.3 saved 1a 6 2    it has made that save; `failed 1a 6`: it could not
0.3 tick            nothing happens
0.4 disk full       from now on no record can be written; `disk ok` ends that
0.5 restart         a new server starts from what is on disk
0.6 why             what holds up the next quorum
"""

from dataclasses import replace

from lighthouse.cold_start import Outcome
from lighthouse.effects import Answer, CloseStream, Effect, Happening, Note, Persist, Refuse, Tell
from lighthouse.machine import JobMachine
from lighthouse.model import (
    Hello,
    JobRecord,
    Member,
    Phase,
    Refusal,
    ReplicaId,
    SaveOffer,
    SavesFound,
    Welcome,
    parse_replica_id,
)
from lighthouse.quorum import Rules, sentence
from lighthouse.saves import Saved
from lighthouse.table import Limits

_SILENT_NOTES = (Happening.APPEARED, Happening.QUORUM, Happening.ATTEMPT_OVER, Happening.DRAINED)


class Transcript:
    """Plays a scenario against one machine and writes down what it does."""

    def __init__(self, rules: Rules, *, limits: Limits | None = None, job: str = "job") -> None:
        self.rules = rules
        self.limits = limits or Limits()
        self.job = job
        self.disk = JobRecord(job=job, quorum_id=0)
        self.disk_full = False
        self.machine = JobMachine(record=self.disk, rules=rules, limits=self.limits)
        self.lines: list[str] = []
        self._now_s = 0.0
        self._names: dict[int, str] = {}
        self._calls: dict[str, int] = {}
        self._streams: dict[tuple[str, int], int] = {}

    def play(self, scenario: str) -> str:
        """The transcript. Lines that begin with `=>` in the scenario are what earlier ones expect."""
        for line in scenario.strip().splitlines():
            if not line.strip().startswith("=>"):
                self.lines.append(line.strip())
                time_s, command, *arguments = line.split()
                self._now_s = float(time_s)
                getattr(self, f"_{command}")(*arguments)
        return "\n".join(self.lines)

    def _id(self, name: str) -> ReplicaId:
        group = name.rstrip("abcdefgh")
        text = f"{self.job}/{group}:{name[len(group) :]}" if self.job else name
        return parse_replica_id(text)

    def _number(self, name: str) -> int:
        number = len(self._names) + 1
        self._names[number] = name
        return number

    def _say(self, text: str) -> None:
        self.lines.append(f"  => {text}")

    def _ask(self, name: str, step: str = "0", *flags: str) -> None:
        call = self._calls[name] = self._number(name)
        member = Member(
            id=self._id(name),
            step=int(step),
            commit_failures=int("fail" in flags),
            shrink_only="shrink" in flags,
            address="moved" if "moved" in flags else "here",
        )
        self._show(self.machine.ask(member, call, self._now_s))

    def _cancel(self, name: str) -> None:
        self._show(self.machine.withdraw(self._id(name), self._calls[name], self._now_s))

    def _beat(self, *names: str) -> None:
        for name in names:
            refusal, effects = self.machine.beat(self._id(name), self._now_s)
            self._show(effects)
            if refusal is not None:
                self._say(f"{name} refused: {refusal.value}")

    def _attach(self, name: str, step: str = "0") -> None:
        self._open(name, 0, int(step))

    def _watch(self, name: str, rank: str) -> None:
        self._open(name, int(rank), 0)

    def _open(self, name: str, rank: int, step: int) -> None:
        id = self._id(name)
        stream = self._number(f"{name}.{rank}" if rank else name)
        hello = Hello(
            job=self.job,
            group=int(id.key),
            replica_id=id.text,
            group_world_size=8,
            step=step,
            group_rank=rank,
        )
        outcome, effects = self.machine.attach(id, hello, stream, self._now_s)
        if isinstance(outcome, Refusal):
            self._say(f"{name} refused: {outcome.value}")
        else:
            self._streams[name, rank] = stream
        if isinstance(outcome, Welcome) and rank == 0:
            self._say(f"{name} starts: {outcome.start_mode.name}, step {outcome.step}")
        self._show([e for e in effects if not (isinstance(e, Note) and e.happening is Happening.ATTACHED)])

    def _cut(self, name: str, rank: str = "0") -> None:
        self._show(self.machine.detach(self._id(name), self._streams[name, int(rank)], self._now_s))

    def _pulse(self, name: str, rank: str = "0") -> None:
        self._show(self.machine.pulse(self._id(name), self._streams[name, int(rank)], self._now_s))

    def _tell(self, name: str, step: str, phase: str, *rounds: str) -> None:
        id, stream = self._id(name), self._streams[name, 0]
        told = int(rounds[0]) if rounds else None
        self._show(self.machine.progress(id, stream, int(step), Phase[phase], self._now_s, rounds=told))

    def _abandon(self, name: str, quorum_id: str) -> None:
        id, stream = self._id(name), self._streams[name, 0]
        self._show(self.machine.abandon(id, stream, int(quorum_id), "no reason", self._now_s))

    def _drain(self, group: str) -> None:
        known, effects = self.machine.drain(int(group))
        self._say_unless(known, f"group {group} is not there")
        self._show(effects)

    def _evict(self, group: str) -> None:
        known, effects = self.machine.evict(int(group), "the operator", self._now_s)
        self._say_unless(known, f"group {group} is not there")
        self._show(effects)

    def _leave(self, name: str) -> None:
        known, effects = self.machine.leave(self._id(name), self._now_s)
        self._say_unless(known, f"{name} is not known")
        self._show(effects)

    def _say_unless(self, known: bool, text: str) -> None:
        if not known:
            self._say(text)

    def _goodbye(self, name: str, step: str, *flags: str) -> None:
        if "saves" in flags:
            may_save_s = float(flags[flags.index("saves") + 1])
            self.machine.cold_starts.may_save(self._id(name), self._streams[name, 0], may_save_s, self._now_s)
        effects = self.machine.goodbye(
            self._id(name),
            self._streams[name, 0],
            finished="finished" in flags,
            step=int(step),
            now_s=self._now_s,
        )
        self._show(effects)

    def _propose(self, name: str, *found: str) -> None:
        seen = _found(found) if found else None
        id, starts = self._id(name), self.machine.cold_starts
        outcome, effects = starts.propose(id, seen, self._now_s)
        self._show(effects)
        if isinstance(outcome, Refusal):
            self._say(f"{name} refused: {outcome.value}")
            return
        if outcome.record is not None and not self._decide(id, outcome):
            return
        answer = outcome.answer
        about = answer.save.name if answer.save is not None else answer.cause
        self._say(f"{name}: {answer.verdict.name}: {about}")

    def _decide(self, id: ReplicaId, outcome: Outcome) -> bool:
        """Whether what was decided is on disk."""
        record = outcome.record
        assert record is not None
        if self.disk_full:
            self._say("not written")
            return False
        self._write(record)
        self._show(self.machine.cold_starts.recorded(id, record, self._now_s))
        return True

    def _saved(self, name: str, step: str, quorum_id: str, *age_s: str) -> None:
        age = float(age_s[0]) if age_s else 0.0
        save = Saved(step=int(step), quorum_id=int(quorum_id), bytes=2_500_000, seconds=1.5, age_s=age)
        id, stream = self._id(name), self._streams[name, 0]
        self._show(self.machine.saves.saved(id, stream, save, self._now_s))

    def _failed(self, name: str, step: str) -> None:
        id, stream = self._id(name), self._streams[name, 0]
        self._show(self.machine.saves.failed(id, stream, int(step), "no space", self._now_s))

    def _tick(self) -> None:
        self._show(self.machine.tick(self._now_s))

    def _disk(self, state: str) -> None:
        self.disk_full = state == "full"

    def _restart(self) -> None:
        warm_until_s = self._now_s + self.limits.heartbeat_timeout_s
        self.machine = JobMachine(
            record=self.disk, rules=self.rules, limits=self.limits, warm_until_s=warm_until_s
        )

    def forget_disk(self, first_quorum_id: int) -> None:
        """A new server starts that has no disk."""
        self.disk = JobRecord(job=self.job, quorum_id=first_quorum_id)
        self._restart()

    def _why(self) -> None:
        waiting = self.machine.waiting(self._now_s)
        self._say(f"{waiting.reason.value}: {sentence(waiting)}")

    def _show(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(record=record):
                    self._persist(record)
                case Answer(quorum=quorum, calls=calls):
                    names = " ".join(str(member.id.key) for member in quorum.members)
                    told = " ".join(self._names[call] for call in calls) or "nobody"
                    self._say(f"quorum {quorum.quorum_id} [{names}] step {quorum.max_step}, to {told}")
                case Refuse(call=call, refusal=refusal):
                    self._say(f"call of {self._names[call]} refused: {refusal.value}")
                case Tell(streams=streams, notice=notice):
                    names = " ".join(self._names[stream] for stream in streams)
                    about = f" {notice.quorum_id}" if notice.quorum_id else ""
                    self._say(f"told {names}: {notice.kind.name}{about}: {notice.cause}")
                case CloseStream(stream=stream, refusal=refusal):
                    self._say(f"stream of {self._names[stream]} closed: {refusal.value}")
                case Note(happening=happening, fields=fields) if happening not in _SILENT_NOTES:
                    shown = " ".join(
                        str(fields[k]) for k in ("replica", "cause", "reason", "save") if k in fields
                    )
                    self._say(f"{happening.value} {shown}".rstrip())

    def _persist(self, record: JobRecord) -> None:
        if self.disk_full:
            self._say("not written")
            self._show(self.machine.persist_failed(self._now_s))
            return
        self._write(record)
        self._show(self.machine.persisted(record, self._now_s))

    def _write(self, record: JobRecord) -> None:
        end = "" if record.finished_step is None else f", finished at {record.finished_step}"
        end += "" if record.restore is None else f", all load {record.restore.save.name}"
        self._say(f"on disk: quorum {record.quorum_id}, step {record.max_step}{end}")
        self.disk = replace(record)


def _found(words: tuple[str, ...]) -> SavesFound:
    """`none` or STEP QUORUM of an offer; then, where there is more, `seen QUORUM` or `torn QUORUM`."""
    is_none = words[0] == "none"
    offer = None
    if not is_none:
        step, quorum_id = words[:2]
        offer = SaveOffer(name=f"save-{step}-{quorum_id}", step=int(step), quorum_id=int(quorum_id))
    beside = words[1 if is_none else 2 :]
    highest = int(beside[1]) if beside else 0
    return SavesFound(offer=offer, highest_quorum_id=highest, unusable=beside[:1] == ("torn",))
