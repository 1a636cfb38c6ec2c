"""Clean histories of runs with kills, made from a seed without any process: material for the checker.

A state is the hash of the state before it and of how the step was computed, as in a real run: in exact
mode of nothing but the number of rounds.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from replica.ledger import EventKind, LedgerLine, Outcome, PhaseSeconds, Reason
from train.evidence.files import Event, Evidence

STATE_BYTES = 1000


class Phase(Enum):
    """When in an attempt a victim dies."""

    BEFORE_ROUNDS = auto()
    MID_ROUNDS = auto()
    BEFORE_VOTE = auto()
    AFTER_COMMIT = auto()
    ONLY_VICTIM_COMMITS = auto()


@dataclass
class Group:
    number: int
    life: str | None = None
    step: int = 0
    lives: int = 0
    back_in: int = 0
    held: set[int] = field(default_factory=set)
    met: list[int] = field(default_factory=list)
    lines: list[LedgerLine] = field(default_factory=list)


@dataclass(frozen=True)
class Save:
    name: str
    step: int
    state: str


class History:
    """One simulated run. `keeps` is whether finished rounds survive a failed attempt.

    After each of `disasters` all groups have died and those that come back read a save, which is made
    after every `save_every` steps. `regroups` lets other numbers of groups and ranks come back.
    """

    def __init__(
        self, seed: int, *, groups: int = 3, rounds: int = 6, steps: int = 14, kills: int = 3,
        mode: str = "fast", keeps: bool = False, phase: Phase | None = None,
        disasters: int = 0, save_every: int = 2, regroups: bool = False,
    ) -> None:  # fmt: skip
        self.random = Random(seed)
        self.now = 1_000_000.0
        self.rounds, self.mode, self.keeps, self.phase = rounds, mode, keeps, phase
        self.groups = [Group(number) for number in range(groups)]
        self.events: list[Event] = []
        self.quorum_id, self.members = 0, ()
        self.failed = False
        self.kill_steps = sorted(self.random.sample(range(1, steps - 5), min(kills, groups and steps - 6)))
        self.job = {
            "groups": groups,
            "ranks": 2,
            "rounds": rounds,
            "mode": mode,
            "seed": seed,
            "steps": steps,
        }
        self.event(EventKind.JOB_STARTED, **self.job)
        for group in self.groups:
            self.launch(group)
        self.step, self.state = 0, "fresh"
        self.save_every = save_every if disasters else 0
        self.saves: list[Save] = []
        disaster_steps = sorted(self.random.sample(range(save_every, steps), disasters))
        while self.step < steps:
            self.attempt()
            if disaster_steps and self.step >= disaster_steps[0] and self.saves:
                disaster_steps.pop(0)
                self.disaster(regroups)
        for group in self.groups:
            if group.life is not None:
                self.event(EventKind.FINISHED, group=group.number, incarnation=group.life, step=steps)

    def evidence(self) -> Evidence:
        ledgers = {group.number: tuple(group.lines) for group in self.groups}
        return Evidence(out=Path("run"), ledgers=ledgers, events=tuple(self.events))

    def event(self, kind: EventKind, **values: Any) -> None:
        self.now += self.random.uniform(0.001, 0.01)
        self.events.append(Event(t=self.now, kind=kind, values=values))

    def launch(self, group: Group) -> None:
        group.lives += 1
        group.life, group.step, group.held = f"life{group.number}{group.lives:03}", 0, set()
        group.met = []
        self.event(EventKind.GROUP_LAUNCHED, group=group.number)
        shape = {"rounds": self.rounds, "ranks": self.job["ranks"], "mode": self.mode}
        self.event(EventKind.GROUP_STARTED, group=group.number, incarnation=group.life, **shape)

    def attempt(self) -> None:
        self.restart_some()
        present = [group for group in self.groups if group.life is not None]
        members = tuple((group.number, group.life) for group in present)
        if members != self.members or self.failed:
            self.quorum_id, self.members = self.quorum_id + self.random.randint(1, 3), members
            for group in present:
                self.note_quorum(group)
        healed = self.heal(present)
        plan = self.deal([group for group in present if group.number not in healed])
        victim, phase = self.choose_victim(present)
        self.run_rounds(plan, present, victim, phase)
        if victim is None:
            committers = present
        else:
            committers = {
                Phase.AFTER_COMMIT: present,
                Phase.ONLY_VICTIM_COMMITS: [victim],
            }.get(phase, [])
        for group in present:
            if group is not victim or group in committers:
                self.write(group, group in committers, plan, healed.get(group.number))
        self.failed = not committers or committers == [victim]
        if victim is not None:
            self.kill(victim)
        if not self.failed:
            self.step, self.state = self.step + 1, self.next_state()
            for group in committers:
                group.step, group.held = self.step, set()
            if self.save_every and self.step % self.save_every == 0:
                self.save(committers[0])

    def next_state(self) -> str:
        how = self.rounds if self.mode == "exact" else (self.rounds, self.quorum_id)
        return sha256(f"{self.state} {how}".encode()).hexdigest()[:32]

    def save(self, writer: Group) -> None:
        place = {
            "group": writer.number,
            "incarnation": writer.life or f"life{writer.number}{writer.lives:03}",
        }
        if self.random.random() < 0.2:
            self.event(EventKind.SAVE_FAILED, **place, step=self.step, reason="the disk is full")
            return
        name = f"step-{self.step:012}-quorum-{self.quorum_id:012}-{writer.number:08x}"
        facts = {"save": name, "bytes": STATE_BYTES, "seconds": 0.2, "blocked_s": 0.001}
        if self.random.random() < 0.8:  # else its writer died right after it was done
            self.event(EventKind.SAVE, **place, step=self.step, quorum_id=self.quorum_id, **facts)
        self.saves.append(Save(name, self.step, self.state))

    def disaster(self, regroups: bool) -> None:
        """All groups die, and with them, it may be, what runs them; then some of them read a save."""
        all_gone = regroups or self.random.random() < 0.5
        for group in self.groups:
            if group.life is not None and not (all_gone and self.random.random() < 0.5):
                self.kill(group)
            group.life, group.back_in = None, 10**9
        back = self.groups
        if regroups:
            back = self.groups[: self.random.randint(1, len(self.groups))]
            ranks = self.random.choice([1, 2])
            self.rounds = self.rounds * self.job["ranks"] // ranks
            self.job |= {"groups": len(back), "ranks": ranks, "rounds": self.rounds}
        if all_gone:
            self.event(EventKind.JOB_STARTED, **self.job)
        if self.random.random() < 0.3:  # the newest is damaged
            self.saves = self.saves[:-1] or self.saves
        save = self.saves[-1]
        self.members, self.failed, self.step, self.state = (), False, save.step, save.state
        late = self.random.randrange(len(back))
        for group in back:
            if group.number > 0 and group.number == late:
                group.back_in = self.random.randint(1, 3)
                continue
            self.launch(group)
            self.now += 1.0
            self.event(
                EventKind.BACKSTOP_READ, group=group.number, incarnation=group.life, step=save.step,
                save=save.name, bytes=STATE_BYTES, seconds=0.9, digest=self.random.choice([save.state, None]),
            )  # fmt: skip
            group.step = save.step

    def restart_some(self) -> None:
        for group in self.groups:
            group.back_in -= 1
            if group.life is None and group.back_in <= 0:
                self.launch(group)

    def note_quorum(self, group: Group) -> None:
        numbers = [number for number, _ in self.members]
        source = {"group": group.number, "incarnation": group.life, "quorum_id": self.quorum_id}
        self.event(EventKind.QUORUM, **source, step=group.step, participants=numbers)
        if gone := sorted(set(group.met) - set(numbers)):
            self.event(EventKind.DEATH_SEEN, **source, dead=gone)
        group.met = numbers

    def heal(self, present: list[Group]) -> dict[int, tuple[int, ...]]:
        donors = [group for group in present if group.step == self.step]
        healed: dict[int, tuple[int, ...]] = {}
        for group in present:
            if group in donors:
                continue
            chosen = self.random.choice(donors)
            for rank in range(2):
                source = {"step": self.step, "rank": rank, "bytes": STATE_BYTES, "seconds": 0.5}
                self.event(EventKind.HEAL_SENT, group=chosen.number, incarnation=chosen.life, **source)
                joiner = {"group": group.number, "incarnation": group.life, "healed_from": chosen.number}
                self.event(EventKind.HEAL, **joiner, **source)
            group.step = self.step
            healed[group.number] = (chosen.number,)
        return healed

    def deal(self, able: list[Group]) -> dict[int, int]:
        plan = {number: group.number for group in able for number in group.held}
        missing = [number for number in range(self.rounds) if number not in plan]
        return plan | {number: able[i % len(able)].number for i, number in enumerate(missing)}

    def choose_victim(self, present: list[Group]) -> tuple[Group | None, Phase | None]:
        if not self.kill_steps or self.step < self.kill_steps[0] or len(present) < 2:
            return None, None
        self.kill_steps.pop(0)
        phase = self.phase or self.random.choice(list(Phase))
        return self.random.choice(present), phase

    def run_rounds(
        self, plan: dict[int, int], present: list[Group], victim: Group | None, phase: Phase | None
    ) -> None:
        for number, owner in sorted(plan.items()):
            group = self.groups[owner]
            dies = group is victim
            if number in group.held or (dies and phase is Phase.BEFORE_ROUNDS):
                continue
            if dies and phase is Phase.MID_ROUNDS and number >= self.rounds // 2:
                continue
            group.held.add(number)
            self.event(
                EventKind.ROUND_DONE, step=self.step, quorum_id=self.quorum_id, group=owner,
                incarnation=group.life, round=number,
                input_xxh64=f"{self.rounds:04x}{self.step:08x}{number:04x}",
            )  # fmt: skip

    def write(
        self, group: Group, committed: bool, plan: dict[int, int], healed_from: tuple[int, ...] | None
    ) -> None:
        self.now += 0.2
        own = {number: owner for number, owner in plan.items() if owner == group.number}
        line = LedgerLine(
            t=self.now, group=group.number, incarnation=group.life or "", step=self.step,
            quorum_id=self.quorum_id, outcome=Outcome.RETRIED if self.keeps else Outcome.DISCARDED,
            reason=Reason.REDUCE_FAILED, participants=tuple(number for number, _ in self.members),
            rounds=tuple(sorted(own.items())), healed_from=healed_from,
            seconds=PhaseSeconds(quorum=0.01, compute=0.15, reduce=0.02, commit=0.01, total=0.2),
        )  # fmt: skip
        if committed:
            line = replace(
                line, outcome=Outcome.COMMITTED, reason=Reason.NONE, rounds=tuple(sorted(plan.items())),
                loss=5.5 / (1 + self.step), digest=self.next_state(),
            )  # fmt: skip
        elif not self.keeps:
            group.held = set()
        group.lines.append(line)

    def kill(self, victim: Group) -> None:
        target = self.random.choice(["group", "rank", "launcher"])
        rank = 1 if target == "rank" else None
        self.event(EventKind.KILL, group=victim.number, rank=rank, target=target, step=self.step)
        self.event(EventKind.GROUP_EXITED, group=victim.number, code=-9)
        victim.life, victim.back_in = None, self.random.randint(1, 3)


def history(seed: int, **how: Any) -> Evidence:
    """The evidence of one simulated run."""
    return History(seed, **how).evidence()
