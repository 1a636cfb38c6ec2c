"""What is known of one replica: its place in the table, held by one incarnation after another."""

from dataclasses import dataclass, field
from enum import StrEnum

from lighthouse.model import Member, Phase, ReplicaId


class Gone(StrEnum):
    """How an incarnation ended. The value is the metric label and the log field."""

    SILENT = "silent"
    STREAM_BROKE = "stream_broke"
    SUPERSEDED = "superseded"
    LEFT = "left"
    FINISHED = "finished"


class SlotState(StrEnum):
    """The state of a replica, as the status shows it."""

    JOINING = "joining"
    ASKING = "asking"
    TRAINING = "training"
    SILENT = "silent"
    DEAD = "dead"
    LEFT = "left"
    FINISHED = "finished"


@dataclass(kw_only=True, slots=True)
class Slot:
    """One replica and its present incarnation.

    `gone` is set while the incarnation does not count, whatever is heard from it. `calls` are its
    open requests for a quorum, which `member` describes; `joined_s` is when it began to wait, and
    outlives a request that timed out and is made again.
    """

    id: ReplicaId
    incarnations: int = 1
    gone: Gone | None = None
    stream: int | None = None
    has_asked: bool = False
    member: Member | None = None
    calls: list[int] = field(default_factory=list)
    joined_s: float | None = None
    withdrawn_s: float = 0.0
    step: int = 0
    phase: Phase = Phase.UNSPECIFIED

    def begin_to_ask(self, member: Member, call: int, now_s: float, *, keep_joined_s: float) -> None:
        """Add a request. One made again within `keep_joined_s` keeps its place in the queue."""
        waits = bool(self.calls) or now_s - self.withdrawn_s <= keep_joined_s
        if self.joined_s is None or not waits:
            self.joined_s = now_s
        self.member = member
        self.has_asked = True
        self.step = member.step
        self.phase = Phase.QUORUM
        self.calls.append(call)

    def withdraw(self, call: int, now_s: float) -> None:
        """Take a request back. Unknown ones are let be: they were answered meanwhile."""
        if call in self.calls:
            self.calls.remove(call)
            self.withdrawn_s = now_s

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
            case Gone.LEFT:
                return SlotState.LEFT
            case Gone.FINISHED:
                return SlotState.FINISHED
            case Gone.STREAM_BROKE | Gone.SUPERSEDED:
                return SlotState.DEAD
        if self.calls:
            return SlotState.ASKING
        return SlotState.TRAINING if in_quorum else SlotState.JOINING
