"""What is known last of each group: how it ended, how far it had come, what it was doing; pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from replica.ledger import EventKind, KillTarget, LedgerLine, Outcome, Reason
from train.evidence.blows import Blow, find_blows
from train.evidence.files import Event, Evidence


class Ending(StrEnum):
    """How a group's last life ended, as far as anybody wrote it down.

    LEFT: it ended on purpose, as after FINISHED, and before the job was done.
    UNTOLD: nothing tells of an end, so that it still runs, or was killed together with whoever would
    have told. STARTING: the same of a group that was launched and had not come up.
    """

    FINISHED = "finished"
    LEFT = "left"
    KILLED = "killed"
    EXITED = "exited"
    EVICTED = "evicted"
    PAUSED = "paused"
    STARTING = "starting"
    UNTOLD = "untold"
    SEEN_DEAD = "seen_dead"
    NEVER_LAUNCHED = "never_launched"


_ENDS: Mapping[EventKind, Ending] = {
    EventKind.GROUP_LAUNCHED: Ending.STARTING,
    EventKind.FINISHED: Ending.FINISHED,
    EventKind.GROUP_EVICTED: Ending.EVICTED,
    EventKind.GROUP_PAUSED: Ending.PAUSED,
}
_SAID: Mapping[Ending, str] = {
    Ending.FINISHED: "finished",
    Ending.LEFT: "left",
    Ending.KILLED: "killed",
    Ending.EVICTED: "counted out",
    Ending.PAUSED: "paused for good",
    Ending.STARTING: "no word since its launch",
    Ending.UNTOLD: "no word of an end: it still runs, or died with whoever would have told",
    Ending.SEEN_DEAD: "seen dead by others",
    Ending.NEVER_LAUNCHED: "never launched",
}


def last_signs(evidence: Evidence) -> list[dict[str, Any]]:
    """A row for each group: `group`, `ending` (of Ending), `code` (of its exit, where told), `t` of the
    last thing that is known of it, in seconds since the start of the run, `steps` (committed by it or
    taken over, None before the first), and `said`: one sentence.
    """
    times = [event.t for event in evidence.events] + [line.t for line in evidence.lines]
    begin_t = min(times, default=0.0)
    groups = {*evidence.ledgers, *range(evidence.job.groups if evidence.job else 0)}
    lives = {group: _Life() for group in sorted(groups)}
    signs: list[Event | LedgerLine] = [*evidence.events, *evidence.lines]
    for sign in sorted(signs, key=lambda sign: sign.t):
        if sign.group in lives:
            lives[sign.group].take(sign)
    for blow in find_blows(evidence):
        if blow.life is not None and blow.life[0] in lives:
            lives[blow.life[0]].seen_dead(blow)
    goal = _goal(evidence, lives.values())
    for life in lives.values():
        life.leave_before(goal)
    return [_row(group, life, begin_t) for group, life in lives.items()]


def _goal(evidence: Evidence, lives: Collection["_Life"]) -> int:
    """The number of steps at which the job is done: as it was told, or else as far as anybody came."""
    told = [event.integer("steps") for event in evidence.of(EventKind.JOB_STARTED)]
    if told and told[-1] is not None:
        return told[-1]
    return max((life.steps or 0 for life in lives), default=0)


@dataclass(kw_only=True)
class _Life:
    """A group's present life. began, rounds: of the attempt of which there is no line yet."""

    ending: Ending = Ending.NEVER_LAUNCHED
    incarnation: str | None = None
    code: int | None = None
    steps: int | None = None
    t: float | None = None
    committed: LedgerLine | None = None
    tried: LedgerLine | None = None
    began: Event | None = None
    rounds: set[int] = field(default_factory=set)
    ended_t: float | None = None
    finished_at: int | None = None

    def take(self, sign: Event | LedgerLine) -> None:
        """Takes in the next thing that is on record of the group."""
        self.t = sign.t
        if isinstance(sign, Event) and sign.incarnation is None:
            self._told(sign)
            return
        if sign.incarnation != self.incarnation:
            self._begin(sign.incarnation)
        if isinstance(sign, LedgerLine):
            self._attempt(sign)
        else:
            self._event(sign)

    def seen_dead(self, death: Blow) -> None:
        """Only others saw the death of a life of this group: of the present one, it may be."""
        if self.ending is Ending.UNTOLD and death.life is not None and death.life[1] == self.incarnation:
            self.ending, self.ended_t = Ending.SEEN_DEAD, max(death.t, self.t or death.t)

    def leave_before(self, goal: int) -> None:
        """The job is done after so many steps: a group that ended on purpose before only left.

        One that has not begun any step came when the job was done, and was told so.
        """
        has_begun = self.committed is not None or self.tried is not None or self.began is not None
        if self.ending is Ending.FINISHED and has_begun and (self.finished_at or 0) < goal:
            self.ending = Ending.LEFT

    def _begin(self, incarnation: str | None) -> None:
        self.incarnation, self.ending, self.code, self.ended_t = incarnation, Ending.UNTOLD, None, None
        self.committed = self.tried = self.began = None
        self.rounds.clear()

    def _told(self, event: Event) -> None:
        """What others wrote down about the group."""
        if event.kind is EventKind.KILL and event.values["target"] != KillTarget.LIGHTHOUSE:
            self._end(Ending.KILLED, event)
        elif event.kind is EventKind.GROUP_EXITED:
            self.code = event.integer("code")
            if self.ending in (Ending.UNTOLD, Ending.SEEN_DEAD, Ending.STARTING, Ending.PAUSED):
                self._end(Ending.EXITED, event)
        elif event.kind is EventKind.GROUP_RESUMED:
            self.ending, self.ended_t = Ending.UNTOLD, None
        elif event.kind in _ENDS:
            if event.kind is EventKind.GROUP_LAUNCHED:
                self._begin(None)
            self._end(_ENDS[event.kind], event)

    def _end(self, ending: Ending, event: Event) -> None:
        self.ending, self.ended_t = ending, event.t

    def _attempt(self, line: LedgerLine) -> None:
        self.tried, self.began = line, None
        self.rounds.clear()
        if line.outcome is Outcome.COMMITTED:
            self.committed, self.steps = line, line.step + 1

    def _event(self, event: Event) -> None:
        """What the group itself wrote down."""
        if event.kind is EventKind.FINISHED:
            self._end(Ending.FINISHED, event)
            self.finished_at = event.integer("step")
        elif event.kind is EventKind.QUORUM:
            self.began = event
            self.rounds.clear()
        elif event.kind is EventKind.ROUND_DONE:
            self.rounds.add(event.integer("round") or 0)
            if self.began is None:
                self.began = event


def _row(group: int, life: _Life, begin_t: float) -> dict[str, Any]:
    t = None if life.t is None else round(life.t - begin_t, 3)
    return {
        "group": group,
        "ending": str(life.ending),
        "code": life.code,
        "t": t,
        "steps": life.steps,
        "said": _sentence(life, begin_t),
    }


def _sentence(life: _Life, begin_t: float) -> str:
    end = _SAID.get(life.ending, f"ended with code {life.code}")
    if life.ending is Ending.LEFT:
        end += f" at step {life.finished_at},"
    if life.ended_t is not None:
        end += f" at {life.ended_t - begin_t:.1f} s"
    if life.ending is Ending.FINISHED:
        return end
    return "; ".join([end, *_doings(life, begin_t)])


def _doings(life: _Life, begin_t: float) -> list[str]:
    """What the group did last, in order of time."""
    said = []
    if life.committed is not None:
        said.append(f"it committed step {life.committed.step} at {life.committed.t - begin_t:.1f} s")
    tried = life.tried
    if tried is not None and tried.outcome is not Outcome.COMMITTED:
        why = "" if tried.reason is Reason.NONE else f" ({str(tried.reason).replace('_', ' ')})"
        said.append(f"gave up step {tried.step}{why} at {tried.t - begin_t:.1f} s")
    if life.rounds:
        step = life.began.integer("step") if life.began is not None else None
        rounds = ", ".join(map(str, sorted(life.rounds)))
        said.append(f"had finished {_rounds(len(life.rounds))} {rounds} of step {step}")
    elif life.began is not None:
        quorum = life.began.integer("quorum_id")
        said.append(f"began step {life.began.integer('step')} in quorum {quorum}")
    elif not said and life.incarnation is not None:
        said.append("it had not begun any step")
    if said and life.t is not None and life.ended_t is None:
        said.append(f"nothing after {life.t - begin_t:.1f} s")
    return said


def _rounds(count: int) -> str:
    return "round" if count == 1 else "rounds"
