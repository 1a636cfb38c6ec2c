"""Where a group's time goes: every second has one cause. Pure: the time is handed in.

A group does one thing at a time. For most things that decides the cause; the time of rounds, sum and
update counts as what came of the attempt, which is known only at its end. `cause_of` is the rule.
"""

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum

from replica.ledger import Outcome


class Cause(StrEnum):
    """What a second of a group went into. Every second has one cause, and only PRODUCTIVE is no loss.

    PRODUCTIVE: rounds and updates of steps that were committed, and the training script's own work
    between steps. REDUCE: the sum over groups and the vote, with the wait for slower groups. QUORUM:
    waiting for a quorum, and agreeing on how to begin. ENDED_ATTEMPT: the rest of an attempt that was
    not committed, less the rounds that were kept and committed later. DETECTION: dead, and not started
    again yet. RECONFIGURING: connecting to the members of a new quorum. HEALING: fetching the state from
    peers or from a save, and the rest of that attempt, in which no rounds are dealt to the group.
    RESTARTING: from the launch until the group attaches: process start, imports, building the model.
    SAVE: training stood still for a save. SPARE: a committed attempt in which there were no rounds for
    this group. NOT_PROVISIONED: not launched yet, or ended for good. RESTORED_OVER: rounds, sum and
    update of committed steps that were lost when all groups died.
    """

    PRODUCTIVE = "productive"
    REDUCE = "reduce"
    QUORUM = "quorum"
    ENDED_ATTEMPT = "ended_attempt"
    DETECTION = "detection"
    RECONFIGURING = "reconfiguring"
    HEALING = "healing"
    RESTARTING = "restarting"
    SAVE = "save"
    SPARE = "spare"
    NOT_PROVISIONED = "not_provisioned"
    RESTORED_OVER = "restored_over"


class Doing(StrEnum):
    """What a living group does. From COMPUTE to COMMIT the attempt's fate decides on the cause."""

    START = "start"
    QUORUM = "quorum"
    CONFIGURE = "configure"
    HEAL = "heal"
    COMPUTE = "compute"
    REDUCE = "reduce"
    VOTE = "vote"
    COMMIT = "commit"
    SAVE = "save"
    SCRIPT = "script"


class Fate(StrEnum):
    """What came of an attempt for one group.

    COMMITTED with rounds of its own; SPARE: committed, and it had none; JOINED: committed right after
    a heal; KEPT: not committed, and its finished rounds are in a commit that it made later; LOST: not
    committed, and they are not; TAKEN_BACK: committed, and then lost with all groups.
    """

    COMMITTED = "committed"
    SPARE = "spare"
    JOINED = "joined"
    KEPT = "kept"
    LOST = "lost"
    TAKEN_BACK = "taken_back"


_ALWAYS: Mapping[Doing, Cause] = {
    Doing.START: Cause.RESTARTING,
    Doing.QUORUM: Cause.QUORUM,
    Doing.CONFIGURE: Cause.RECONFIGURING,
    Doing.HEAL: Cause.HEALING,
    Doing.SAVE: Cause.SAVE,
    Doing.SCRIPT: Cause.PRODUCTIVE,
}
_WHOLE: Mapping[Fate, Cause] = {
    Fate.SPARE: Cause.SPARE,
    Fate.JOINED: Cause.HEALING,
    Fate.LOST: Cause.ENDED_ATTEMPT,
    Fate.TAKEN_BACK: Cause.RESTORED_OVER,
}


def cause_of(doing: Doing, fate: Fate) -> Cause:
    """The cause of time spent in an attempt with this fate, or right before it."""
    if doing in _ALWAYS:
        return _ALWAYS[doing]
    if fate in _WHOLE:
        return _WHOLE[fate]
    if fate is Fate.KEPT:
        return Cause.PRODUCTIVE if doing is Doing.COMPUTE else Cause.ENDED_ATTEMPT
    return Cause.REDUCE if doing in (Doing.REDUCE, Doing.VOTE) else Cause.PRODUCTIVE


def fate_of(outcome: Outcome, *, healed: bool, dealt: bool) -> Fate:
    """The fate of an attempt as it looks at its end; KEPT until it turns out otherwise.

    healed: the group took newer state in it. dealt: rounds of the step are the group's own.
    """
    if outcome is not Outcome.COMMITTED:
        return Fate.KEPT if outcome is Outcome.RETRIED else Fate.LOST
    if healed:
        return Fate.JOINED
    return Fate.COMMITTED if dealt else Fate.SPARE


class Meter:
    """The account of one life of a group: what it does, and since when, goes in; seconds come out."""

    def __init__(self, now_s: float, doing: Doing = Doing.START) -> None:
        self.doing = doing
        self._since_s = now_s
        self._settled: defaultdict[Cause, float] = defaultdict(float)
        self._undecided: defaultdict[Doing, float] = defaultdict(float)
        self._kept_s = 0.0

    def enter(self, doing: Doing, now_s: float) -> float:
        """From now on the group does this; returns the seconds that it did the thing before."""
        seconds = max(0.0, now_s - self._since_s)
        if self.doing in _ALWAYS:
            self._settled[_ALWAYS[self.doing]] += seconds
        else:
            self._undecided[self.doing] += seconds
        self.doing, self._since_s = doing, now_s
        return seconds

    def end_attempt(self, fate: Fate, now_s: float) -> None:
        """The attempt is over. Rounds that are kept count once the step is committed, or they are lost."""
        self.enter(Doing.SCRIPT, now_s)
        for doing, seconds in self._undecided.items():
            if fate is Fate.KEPT and doing is Doing.COMPUTE:
                self._kept_s += seconds
            else:
                self._settled[cause_of(doing, fate)] += seconds
        self._undecided.clear()
        if fate is not Fate.KEPT:
            kept = fate in (Fate.COMMITTED, Fate.SPARE)
            self._settled[Cause.PRODUCTIVE if kept else Cause.ENDED_ATTEMPT] += self._kept_s
            self._kept_s = 0.0

    def seconds_by_cause(self, now_s: float) -> dict[Cause, float]:
        """Seconds of each cause so far; none ever falls. What is still undecided is left out."""
        found = {cause: float(self._settled[cause]) for cause in Cause}
        if self.doing in _ALWAYS:
            found[_ALWAYS[self.doing]] += max(0.0, now_s - self._since_s)
        return found
