"""What is known of one replica: its place in the table, held by one incarnation after another."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from lighthouse.lag import Waits, lags
from lighthouse.model import Member, Phase, ReplicaId
from lighthouse.persistence import Persistence


class Gone(StrEnum):
    """How an incarnation ended. The value is the metric label and the log field."""

    SILENT = "silent"
    STREAM_BROKE = "stream_broke"
    SUPERSEDED = "superseded"
    EVICTED = "evicted"
    LEFT = "left"
    FINISHED = "finished"


_PHASES_REMEMBERED = 8
_IN_ATTEMPT = (Phase.COMPUTE, Phase.REDUCE, Phase.SAVE)

# An incarnation that ended in one of these ways never counts again.
FINAL = frozenset({Gone.SUPERSEDED, Gone.EVICTED, Gone.LEFT, Gone.FINISHED})


class SlotState(StrEnum):
    """The state of a replica, as the status shows it."""

    JOINING = "joining"
    ASKING = "asking"
    TRAINING = "training"
    SILENT = "silent"
    DEAD = "dead"
    EVICTED = "evicted"
    LEFT = "left"
    FINISHED = "finished"


@dataclass(kw_only=True, slots=True)
class Line:
    """The open stream of one rank. `pulse_s` is when it last said that its process runs.

    It is None until it has said so once: one that never does is not held to it. `waits` is what it
    has told of its rounds.
    """

    stream: int
    pulse_s: float | None = None
    waits: Waits = field(default_factory=Waits)

    def speak(self, now_s: float) -> None:
        """Whatever else it says proves that it runs, too."""
        if self.pulse_s is not None:
            self.pulse_s = now_s


@dataclass(kw_only=True, slots=True)
class Slot:
    """One replica and its present incarnation.

    `gone` is set while the incarnation does not count, whatever is heard from it, and `gone_s` is since
    when. `known`: an incarnation of this place has been attached. `lines` are its open streams by rank,
    `broken` the ranks whose stream broke and was not opened again. `calls` are its open requests for a
    quorum, which `member` describes; `joined_s` is when it began to wait, and outlives a request that
    timed out and is made again. `answered` is what it had asked when it last got a quorum. `returning`:
    it was known before this slot was made. `moved_s` is when it last made progress, `rounds` how many
    it is computing, `computed_s` how long one of them took on average, in each of its last phases of
    computing. `slow` is how many times the median of the others it needs, 0 where it is not steadily
    slower; `slow_ranks` are those of its ranks for which its others wait, each with the share of a
    round; `seems_slow` is what both are judged by. `failed_save_step` is the last step at which it said
    that a save of its own failed. `looks` while it looks for a save to start from, and until the one
    that it has found is on record.
    """

    id: ReplicaId
    incarnations: int = 1
    gone: Gone | None = None
    gone_s: float = 0.0
    known: bool = False
    lines: dict[int, Line] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    returning: bool = False
    draining: bool = False
    has_asked: bool = False
    answered: Member | None = None
    member: Member | None = None
    calls: list[int] = field(default_factory=list)
    joined_s: float | None = None
    withdrawn_s: float = 0.0
    step: int = 0
    phase: Phase = Phase.UNSPECIFIED
    moved_s: float = 0.0
    rounds: int = 1
    computed_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PHASES_REMEMBERED))
    suspect: bool = False
    slow: float = 0.0
    slow_ranks: dict[int, float] = field(default_factory=dict)
    seems_slow: Persistence = field(default_factory=Persistence)
    failed_save_step: int = -1
    looks: bool = False

    def move(self, step: int, phase: Phase, now_s: float, *, rounds: int | None = None) -> None:
        """Note where it is. Saying the same again is no progress.

        `rounds` is how many it was dealt; a client that does not tell is taken to have one.
        """
        if (step, phase) == (self.step, self.phase):
            return
        has_computed = self.phase is Phase.COMPUTE and phase is Phase.REDUCE and step == self.step
        if has_computed and self.rounds > 0:
            self.computed_s.append((now_s - self.moved_s) / self.rounds)
        self.rounds = 1 if rounds is None else rounds
        self.step, self.phase, self.moved_s, self.suspect = step, phase, now_s, False

    def go(self, gone: Gone, now_s: float) -> bool:
        """It does not count from now on; whether it still did."""
        counted = self.gone is None
        self.gone_s = now_s if counted else self.gone_s
        self.gone = gone
        return counted

    def counts_as(self, replica_id: str) -> bool:
        """Whether this is that incarnation, and it counts."""
        return self.id.text == replica_id and self.gone is None

    @property
    def is_missed(self) -> bool:
        """Whether it is a group of the job that has died and was not counted out by the operator."""
        return self.known and self.gone not in (None, Gone.LEFT, Gone.FINISHED)

    @property
    def attached(self) -> bool:
        """Whether rank 0 holds its stream open."""
        return 0 in self.lines

    def streams(self) -> tuple[int, ...]:
        """The open streams of all ranks."""
        return tuple(line.stream for line in self.lines.values())

    def rank_of(self, stream: int) -> int | None:
        """Whose stream this is, or None if it is none of the open ones."""
        return next((rank for rank, line in self.lines.items() if line.stream == stream), None)

    def lags(self) -> dict[int, float]:
        """For each rank that tells: for what share of a round the other ranks wait for it."""
        return lags({rank: line.waits for rank, line in self.lines.items()})

    def begin_to_ask(self, member: Member, call: int, now_s: float, *, keep_joined_s: float) -> None:
        """Add a request. One made again within `keep_joined_s` keeps its place in the queue."""
        waits = bool(self.calls) or now_s - self.withdrawn_s <= keep_joined_s
        if self.joined_s is None or not waits:
            self.joined_s = now_s
        self.member = member
        self.has_asked = True
        self.step, self.phase = member.step, Phase.QUORUM
        self.moved_s, self.suspect = now_s, False
        self.calls.append(call)

    def withdraw(self, call: int, now_s: float) -> None:
        """Take a request back. Unknown ones are let be: they were answered meanwhile."""
        if call in self.calls:
            self.calls.remove(call)
            self.withdrawn_s = now_s

    def asks_again(self, member: Member) -> bool:
        """Whether this is the request that was answered already: it has given up what came of it."""
        answered = self.answered
        return (
            answered is not None
            and not self.calls
            and (answered.step, answered.commit_failures) == (member.step, member.commit_failures)
        )

    def is_in_attempt(self) -> bool:
        """Whether it has said that it computes a step or saves the last one, and does not ask."""
        return self.gone is None and not self.calls and self.phase in _IN_ATTEMPT

    def take_calls(self) -> tuple[int, ...]:
        """All open requests, which are thereby over."""
        calls = tuple(self.calls)
        self.calls.clear()
        self.joined_s = None
        return calls

    def state(self, *, in_quorum: bool) -> SlotState:
        """What the status calls it. `in_quorum`: this incarnation is in the last quorum."""
        match self.gone:
            case Gone.SILENT:
                return SlotState.SILENT
            case Gone.EVICTED:
                return SlotState.EVICTED
            case Gone.LEFT:
                return SlotState.LEFT
            case Gone.FINISHED:
                return SlotState.FINISHED
            case Gone.STREAM_BROKE | Gone.SUPERSEDED:
                return SlotState.DEAD
        if self.calls:
            return SlotState.ASKING
        return SlotState.TRAINING if in_quorum else SlotState.JOINING
