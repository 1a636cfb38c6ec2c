"""Watches simulated groups step, and keeps an account of its own of what must hold."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from replica.rounds import Plan

if TYPE_CHECKING:
    from sim_step_group import SimGroup
    from sim_step_rank import SimRank
    from sim_step_wire import SimQuorum


class Token(NamedTuple):
    """Stands for the gradient of one round, taken on one state."""

    state: int
    round: int
    bad: bool = False


class Introduction(NamedTuple):
    """What a member of a quorum had when it met the others."""

    state: int
    held: frozenset[int]


class Judge:
    """States are known by numbers: equal states, that is equal histories of commits, have equal ones."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.counted: Counter[str] = Counter()
        self.highest_step = 0
        self._states: dict[tuple[int, tuple[Token, ...]], int] = {}
        self._state_after: dict[int, int] = {0: 0}
        self._committed_in: dict[int, int] = {}
        self._lived: dict[int, int] = defaultdict(int)
        self._done: dict[SimRank, set[int]] = defaultdict(set)
        self._introduced: dict[int, dict[int, Introduction]] = defaultdict(dict)
        self._run: set[tuple[int, int]] = set()

    def introduced(self, rank: "SimRank", quorum: "SimQuorum") -> None:
        """The rank tells the others what it holds."""
        held = frozenset(rank.held)
        assert held == self._done[rank], f"{rank} says it holds {set(held)}, not {self._done[rank]}"
        mine = Introduction(rank.state, held)
        theirs = self._introduced[quorum.id].setdefault(rank.group.number, mine)
        assert mine == theirs, f"{rank} introduces itself as {mine}, a sibling as {theirs}"

    def met(self, ranks: Sequence["SimRank"], tags: Sequence[object]) -> None:
        """All ranks of a group have come to a meeting, which is the same one for all."""
        assert len(set(tags)) == 1, f"the ranks of {ranks[0].group} meet for different things: {tags}"
        told = {(rank.step, rank.state, frozenset(rank.held)) for rank in ranks}
        assert len(told) == 1, f"the ranks of {ranks[0].group} have come apart: {told}"
        self._alive_at(ranks[0].group, ranks[0].step)

    def entered(self, rank: "SimRank", plan: Plan, quorum: "SimQuorum", *, changed: bool) -> None:
        """The rank begins to compute: it holds what the plan says, and dropped no more than it must."""
        held = frozenset(rank.held)
        assert held == plan.held_by(rank.group.number), f"{rank} holds {set(held)} under {plan}"
        if held != self._done[rank]:
            must = changed and self._conflicts(quorum, rank.group.number)
            assert must, f"{rank} dropped {self._done[rank]}"
            self.counted["dropped for a conflict"] += 1
            self._done[rank].clear()

    def _conflicts(self, quorum: "SimQuorum", group: int) -> bool:
        """Whether another member of the quorum held a round that this one held too."""
        introduced = self._introduced[quorum.id]
        mine = introduced[group]
        return any(
            other.state == mine.state and other.held & mine.held
            for number, other in introduced.items()
            if number != group
        )

    def ran(self, rank: "SimRank", index: int, quorum: "SimQuorum", *, changed: bool) -> None:
        """A round is computed: none that a member has already, unless two have it."""
        assert index not in self._done[rank], f"{rank} runs round {index} again"
        self._done[rank].add(index)
        self.counted["rounds run again"] += (rank.state, index) in self._run and rank.rank == 0
        if rank.rank == rank.group.size - 1:
            self._run.add((rank.state, index))
        for number, other in self._introduced[quorum.id].items() if changed else ():
            if other.state == rank.state and index in other.held:
                assert self._conflicts(quorum, number), f"{rank} runs round {index} of group {number}"

    def summed(self, rank: "SimRank", tokens: Iterable[Token]) -> None:
        """A sum over groups has come about: of this step's gradients, none twice; some may be missing."""
        tokens = list(tokens)
        assert len({token.round for token in tokens}) == len(tokens), f"{rank} has rounds twice: {tokens}"
        strangers = [token for token in tokens if token.state != rank.state]
        assert not strangers, f"{rank} at state {rank.state} is given {strangers}"

    def committed(self, rank: "SimRank", tokens: Iterable[Token], quorum_id: int) -> int:
        """The number of the state after a commit of these gradients."""
        value = tuple(sorted(tokens))
        whole = tuple(Token(rank.state, index) for index in range(self.rounds))
        assert value == whole, f"{rank} commits {value} at step {rank.step}"
        state = self._states.setdefault((rank.state, value), len(self._states) + 1)
        known = self._state_after.setdefault(rank.step + 1, state)
        assert state == known, f"{rank} gives step {rank.step} another value"
        # Whoever committed it first died with it, or was left out since: the value is the same.
        self.counted["committed again"] += self._committed_in.setdefault(rank.step, quorum_id) != quorum_id
        self._done[rank].clear()
        self.highest_step = max(self.highest_step, rank.step + 1)
        self.counted["commits"] += 1
        return state

    def healed(self, rank: "SimRank") -> None:
        """The rank has adopted a newer state."""
        assert self._state_after[rank.step] == rank.state, f"{rank} has healed to a state of another step"
        self.counted["heals"] += 1
        self._done[rank].clear()

    def discarded(self, rank: "SimRank") -> None:
        """The rank gave up an attempt for a gradient that is not finite."""
        self.counted["discarded"] += 1
        self._done[rank].clear()

    def _alive_at(self, group: "SimGroup", step: int) -> None:
        """A living group holds this many steps."""
        assert step >= self._lived[group.incarnation], f"{group} falls back to step {step}"
        self._lived[group.incarnation] = step
