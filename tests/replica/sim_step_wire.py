"""What simulated groups have between them: a Lighthouse, and connections for each group rank."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sim_step_world import Fault, Point, World

if TYPE_CHECKING:
    from sim_step_group import SimGroup
    from sim_step_rank import SimRank

JOIN_TIMEOUT_S = 6.0


@dataclass(frozen=True, kw_only=True)
class SimQuorum:
    """The groups that train together, in order, each with the step that it asked at."""

    id: int
    members: tuple["SimGroup", ...]
    steps: tuple[int, ...]

    @property
    def max_step(self) -> int:
        return max(self.steps)


class Channel:
    """The process group of one group rank in one quorum: all members meet in it, time after time."""

    def __init__(self, quorum: SimQuorum) -> None:
        self.size = len(quorum.members)
        self.closed = False
        self.waiting: list[SimRank] = []
        self._meetings: list[tuple[str, dict[int, object]]] = []

    def meeting(self, number: int, tag: str) -> dict[int, object]:
        """What each group has brought to the meeting with this number, which is about the same for all."""
        if len(self._meetings) == number:
            self._meetings.append((tag, {}))
        about, brought = self._meetings[number]
        assert about == tag, f"some members meet to {about}, some to {tag}"
        return brought

    def close(self) -> None:
        """A member leaves: the others' connections to it break."""
        self.closed = True
        self.wake()

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for rank in waiting:
            rank.world.wake(rank)


class SimLighthouse:
    """Answers all who ask once the living members of the last quorum ask; ids rise when it must be.

    With `tells` false it sends no notices, as torchft's own does not.
    """

    def __init__(self, world: World, *, tells: bool) -> None:
        self.world = world
        self.tells = tells
        self.last = SimQuorum(id=0, members=(), steps=())
        self.record = 0
        self.highest_ask = 0
        self._asks: dict[int, SimGroup] = {}
        self._late: list[SimGroup] = []
        self._first_ask_s = 0.0
        self._gone: set[int] = set()
        self._over = 0
        self._channels: dict[tuple[int, int], Channel] = {}

    def channel(self, quorum: SimQuorum, rank: int) -> Channel:
        """Where the ranks with this number meet in this quorum."""
        key = (quorum.id, rank)
        if key not in self._channels:
            self._channels[key] = Channel(quorum)
        return self._channels[key]

    def hear_ask(self, group: "SimGroup") -> None:
        """All ranks of the group wait for a quorum."""
        if group.incarnation in self._gone:
            return
        if not self._asks:
            self._first_ask_s = self.world.now_s
        self._asks[group.number] = group
        if group in self.last.members and group.ranks[0].failures:
            self.end_attempt(self.last.id)
        self._decide()

    def hear_abandoned(self, quorum_id: int) -> None:
        """A rank has given up."""
        if quorum_id == self.last.id:
            self.end_attempt(quorum_id)

    def lose(self, group: "SimGroup") -> None:
        """The group is dead, or replaced by a new incarnation."""
        if group.incarnation in self._gone:
            return
        self._gone.add(group.incarnation)
        if self._asks.get(group.number) is group:
            del self._asks[group.number]
        if group in self.last.members:
            self.end_attempt(self.last.id)
        self._decide()

    def end_attempt(self, quorum_id: int) -> None:
        """Tell all ranks of its members, once; some hear it late, some never."""
        if not self.tells or quorum_id <= self._over:
            return
        self._over = quorum_id
        for group in self.last.members:
            for rank in group.ranks:
                if not self.world.strikes(Fault.LOSE, 0.3):
                    self.world.after(self.world.delay_s(), partial(rank.hear_over, quorum_id))

    def _decide(self) -> None:
        if not self._asks:
            return
        waited_s = self.world.now_s - self._first_ask_s
        if self._somebody_is_missing() and waited_s < JOIN_TIMEOUT_S:
            self.world.after(JOIN_TIMEOUT_S - waited_s + 0.01, self._decide)
            return
        self._leave_out()
        members = tuple(self._asks[number] for number in sorted(self._asks))
        steps = tuple(group.step for group in members)
        if max(steps) >= self.record:
            self._issue(members, steps)
        self._asks |= {group.number: group for group in self._late}
        self._late = []

    def _leave_out(self) -> None:
        """Some come too late for a quorum, and wait for the next; those too that have work in hand."""
        for number, group in list(self._asks.items()):
            likely = 0.5 if group.ranks[0].held else 0.1
            if len(self._asks) > 1 and self.world.strikes(Fault.LEAVE_OUT, likely, Point.QUORUM):
                self._late.append(self._asks.pop(number))
                self.world.after(JOIN_TIMEOUT_S, self._decide)
                # What the others do meanwhile is done twice if they fail too.
                self.world.after(self.world.random.uniform(0.5, 4.0), self._end_for_no_reason)

    def _end_for_no_reason(self) -> None:
        if self.world.strikes(Fault.END, 0.7):
            self.end_attempt(self.last.id)

    def _somebody_is_missing(self) -> bool:
        asking = self._asks.values()
        return any(group not in asking and group.incarnation not in self._gone for group in self.last.members)

    def _issue(self, members: tuple["SimGroup", ...], steps: tuple[int, ...]) -> None:
        quorum_id = self.last.id + self._is_change(members)
        self.last = SimQuorum(id=quorum_id, members=members, steps=steps)
        self.record = max(self.record, *steps)
        self._asks = {}
        for group in members:
            for rank in group.ranks:
                self.world.after(self.world.delay_s(), partial(rank.hear_quorum, self.last))

    def _is_change(self, members: tuple["SimGroup", ...]) -> bool:
        return members != self.last.members or any(group.ranks[0].failures for group in members)
