"""A tiny language for scenarios: each line is an event, its effects are written below it.

0.0 ask 0a 5        incarnation a of group 0 asks at step 5 (`fail`: its last commit failed)
0.1 beat 1a         its pulse; likewise `attach 1a [STEP]`, `detach 1a`, `cancel 1a`
0.2 goodbye 1a 7    it leaves at step 7 (`finished`: the job is done)
0.3 tick            nothing happens
0.4 disk full       from now on no record can be written; `disk ok` ends that
0.5 restart         a new server starts from what is on disk
0.6 why             what holds up the next quorum
"""

from dataclasses import replace

from lighthouse.effects import Answer, CloseStream, Effect, Happening, Note, Persist, Refuse
from lighthouse.machine import JobMachine
from lighthouse.model import Hello, JobRecord, Member, Refusal, ReplicaId, parse_replica_id
from lighthouse.quorum import Rules, sentence
from lighthouse.table import Limits

_SILENT_NOTES = (Happening.APPEARED, Happening.QUORUM)


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
        self._streams: dict[str, int] = {}

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
        id = self._id(name)
        stream = self._number(name)
        hello = Hello(job=self.job, group=int(id.key), replica_id=id.text, group_world_size=1, step=int(step))
        outcome, effects = self.machine.attach(id, hello, stream, self._now_s)
        if isinstance(outcome, Refusal):
            self._say(f"{name} refused: {outcome.value}")
        else:
            self._streams[name] = stream
            self._say(f"{name} starts: {outcome.start_mode.name}, step {outcome.step}")
        self._show([e for e in effects if not (isinstance(e, Note) and e.happening is Happening.ATTACHED)])

    def _detach(self, name: str) -> None:
        self._show(self.machine.detach(self._id(name), self._streams[name], self._now_s))

    def _goodbye(self, name: str, step: str, *flags: str) -> None:
        effects = self.machine.goodbye(
            self._id(name),
            self._streams[name],
            finished="finished" in flags,
            step=int(step),
            now_s=self._now_s,
        )
        self._show(effects)

    def _tick(self) -> None:
        self._show(self.machine.tick(self._now_s))

    def _disk(self, state: str) -> None:
        self.disk_full = state == "full"

    def _restart(self) -> None:
        warm_until_s = self._now_s + self.limits.heartbeat_timeout_s
        self.machine = JobMachine(
            record=self.disk, rules=self.rules, limits=self.limits, warm_until_s=warm_until_s
        )

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
                case CloseStream(stream=stream, refusal=refusal):
                    self._say(f"stream of {self._names[stream]} closed: {refusal.value}")
                case Note(happening=happening, fields=fields) if happening not in _SILENT_NOTES:
                    shown = " ".join(str(fields[k]) for k in ("replica", "cause", "reason") if k in fields)
                    self._say(f"{happening.value} {shown}".rstrip())

    def _persist(self, record: JobRecord) -> None:
        if self.disk_full:
            self._say("not written")
            self._show(self.machine.persist_failed(self._now_s))
            return
        end = "" if record.finished_step is None else f", finished at {record.finished_step}"
        self._say(f"on disk: quorum {record.quorum_id}, step {record.max_step}{end}")
        self.disk = replace(record)
        self._show(self.machine.persisted(record, self._now_s))
