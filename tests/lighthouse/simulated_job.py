"""One machine, simulated groups and a disk, driven by a seed; rules are checked at every quorum."""

import random
from dataclasses import dataclass, field

from lighthouse.effects import Answer, Effect, Persist, Refuse
from lighthouse.machine import JobMachine
from lighthouse.model import Hello, JobRecord, Member, Phase, Quorum, ReplicaId, parse_replica_id
from lighthouse.quorum import Rules
from lighthouse.table import Limits

LIMITS = Limits(heartbeat_timeout_s=5.0, max_replicas=16, max_buried=64)
TICK_S = 0.1


@dataclass
class Group:
    """What the group itself knows."""

    number: int
    incarnation: int = 0
    alive: bool = False
    call: int | None = None
    stream: int | None = None
    step: int = 0
    failed: int = 0
    past: list[ReplicaId] = field(default_factory=list)

    @property
    def id(self) -> ReplicaId:
        return parse_replica_id(f"job/{self.number}:{self.incarnation}")


class SimulatedJob:
    """The world: `run` lets a nemesis play, `heal` stops it and expects progress."""

    def __init__(self, seed: int, *, groups: int, rules: Rules) -> None:
        self.random = random.Random(seed)
        self.rules = rules
        self.groups = [Group(number=number) for number in range(groups)]
        self.now_s = 0.0
        self.disk = JobRecord(job="job", quorum_id=0)
        self.disk_full = False
        self.machine = JobMachine(record=self.disk, rules=rules, limits=LIMITS)
        self.numbers = 0
        self.owners: dict[int, Group] = {}
        self.quorums: list[Quorum] = []
        self.dead: set[str] = set()
        self.lost: set[int | None] = set()

    # What the nemesis and the groups do.

    def run(self, events: int) -> None:
        """Let this many random events happen."""
        acts = (self.start, self.start, self.kill, self.vanish, self.ask, self.ask, self.ask, self.ask)
        acts += (self.ask,) * 12
        acts += (self.cancel, self.ghost, self.cut, self.attach, self.tell)
        for _ in range(events):
            roll = self.random.random()
            if roll < 0.01:
                self.restart_server()
            elif roll < 0.02:
                self.disk_full = not self.disk_full
            elif roll < 0.4:
                self.pass_time(self.random.choice((0.1, 0.1, 0.5, 2.0)))
            else:
                self.random.choice(acts)(self.random.choice(self.groups))

    def heal(self, limit_s: float) -> None:
        """Nothing bad happens any more: everybody is back, and commits a step with all others."""
        self.disk_full = False
        for group in self.groups:
            if not group.alive:
                self.start(group)
        before = len(self.quorums)
        end_s = self.now_s + limit_s
        while not any(len(quorum.members) == len(self.groups) for quorum in self.quorums[before:]):
            assert self.now_s < end_s, self.machine.waiting(self.now_s)
            for group in self.groups:
                self.attach(group)
                self.ask(group)
            self.pass_time(TICK_S)

    def pass_time(self, duration_s: float) -> None:
        """Let time pass: living groups beat, the server ticks."""
        end_s = self.now_s + duration_s
        while self.now_s < end_s:
            self.now_s += TICK_S
            for group in self.groups:
                if group.alive:
                    _, effects = self.machine.beat(group.id, self.now_s)
                    self.carry_out(effects)
            self.carry_out(self.machine.tick(self.now_s))

    def start(self, group: Group) -> None:
        if group.alive:
            return
        group.past.append(group.id)
        group.incarnation += 1
        group.alive, group.step, group.failed = True, 0, 0
        self.attach(group)

    def attach(self, group: Group) -> None:
        if not group.alive or group.stream is not None:
            return
        group.stream = self.number()
        hello = Hello(job="job", group=group.number, replica_id=group.id.text, group_world_size=1)
        self.dead.discard(group.id.text)
        _, effects = self.machine.attach(group.id, hello, group.stream, self.now_s)
        self.carry_out(effects)

    def kill(self, group: Group) -> None:
        """SIGKILL: calls and the stream break now."""
        if not group.alive:
            return
        group.alive = False
        self.cancel(group)
        self.cut(group)

    def vanish(self, group: Group) -> None:
        """The host is gone without closing a socket. A later start finds the old ones still open."""
        if group.alive and self.random.random() < 0.1:
            self.lost.add(group.call)
            group.alive, group.call, group.stream = False, None, None

    def cut(self, group: Group) -> None:
        """The stream breaks; a group that lives attaches again later."""
        stream, group.stream = group.stream, None
        if stream is not None:
            self.dead.add(group.id.text)
            self.carry_out(self.machine.detach(group.id, stream, self.now_s))

    def ask(self, group: Group) -> None:
        if not group.alive or group.call is not None:
            return
        self.attach(group)
        group.call = self.number()
        self.owners[group.call] = group
        member = Member(id=group.id, step=group.step, commit_failures=group.failed)
        self.carry_out(self.machine.ask(member, group.call, self.now_s))

    def cancel(self, group: Group) -> None:
        if group.call is not None:
            call, group.call = group.call, None
            self.carry_out(self.machine.withdraw(group.id, call, self.now_s))

    def ghost(self, group: Group) -> None:
        """A pulse of an earlier incarnation comes late."""
        if group.past and group.alive:
            _, effects = self.machine.beat(self.random.choice(group.past[-3:]), self.now_s)
            self.carry_out(effects)

    def tell(self, group: Group) -> None:
        if group.alive and group.stream is not None:
            told = self.machine.progress(group.id, group.stream, group.step, Phase.COMPUTE, self.now_s)
            self.carry_out(told)

    def restart_server(self) -> None:
        """SIGKILL of the server: calls and streams are gone, the disk is what it was."""
        for group in self.groups:
            group.call = group.stream = None
        self.dead.clear()
        warm_until_s = self.now_s + LIMITS.heartbeat_timeout_s
        self.machine = JobMachine(
            record=self.disk, rules=self.rules, limits=LIMITS, warm_until_s=warm_until_s
        )

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # The shell, and the rules.

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(record=record) if self.disk_full:
                    self.carry_out(self.machine.persist_failed(self.now_s))
                case Persist(record=record):
                    self.disk = record
                    self.carry_out(self.machine.persisted(record, self.now_s))
                case Answer(quorum=quorum, calls=calls):
                    self.check(quorum, calls)
                    for call in calls:
                        self.answer(self.owners.pop(call), call, quorum)
                case Refuse(call=call):
                    group = self.owners.pop(call)
                    if group.call == call:
                        group.call = None

    def answer(self, group: Group, call: int, quorum: Quorum) -> None:
        if call in self.lost:
            return
        assert group.call == call, "an answered call must be open"
        group.call = None
        group.step = quorum.max_step + (self.random.random() < 0.8)
        group.failed = int(self.random.random() < 0.1)

    def check(self, quorum: Quorum, calls: tuple[int, ...]) -> None:
        """What must hold of every quorum when its members are told."""
        names = [member.id.text for member in quorum.members]
        assert quorum.members
        assert len(quorum.members) >= self.rules.min_replicas
        assert names == sorted(set(names))
        assert not self.dead & set(names), "the dead are in no quorum"
        assert self.disk.quorum_id == quorum.quorum_id, "on disk before anybody is told"
        assert self.disk.members == tuple(names)
        asking = {self.owners[call].id.text for call in calls}
        assert asking == set(names), "each member is told, and nobody else"
        if self.quorums:
            last = self.quorums[-1]
            assert quorum.quorum_id >= last.quorum_id
            same = [m.place() for m in quorum.members] == [m.place() for m in last.members]
            assert same or quorum.quorum_id > last.quorum_id, "no two member lists share an id"
        assert self.disk.max_step == 0 or self.disk.max_step <= max(self.steps(quorum))
        self.quorums.append(quorum)
        assert len(self.machine.table.slots) <= LIMITS.max_replicas

    def steps(self, quorum: Quorum) -> list[int]:
        return [quorum.max_step, *(past.max_step for past in self.quorums)]
