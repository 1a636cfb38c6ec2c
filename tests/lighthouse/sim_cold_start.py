"""How a simulated group starts: as it is told, and from a save if nobody lives from whom it could heal."""

from typing import TYPE_CHECKING

from sim_world import Act

from lighthouse.model import ColdStart, ColdStartAnswer, Refusal, SaveOffer, SavesFound, StartMode

if TYPE_CHECKING:
    from sim_group import SimGroup

POLL_S = 0.3
ANSWER_TIMEOUT_S = 1.0
# The share of loads in which that happens.
STALLS = 0.4


class SimColdStart:
    """Goes on until it knows; then the group asks for its first quorum."""

    def __init__(self, group: "SimGroup") -> None:
        self.is_over = False
        self.loaded: SaveOffer | None = None
        self.has_found_it_gone = False
        self._group = group
        self._is_welcome = False
        self._found: SavesFound | None = None
        self._call: int | None = None
        self._is_busy = False

    def welcomed(self, mode: StartMode) -> None:
        """The group has attached, for the first time or again."""
        if self._is_welcome or not self._group.alive:
            return
        self._is_welcome = True
        if mode in (StartMode.RESTORE, StartMode.FRESH):
            self.go_on()
        else:
            self._start()

    def go_on(self) -> None:
        """Ask, if there is something to ask and nobody asks already."""
        group = self._group
        if self.is_over or not self._is_welcome or self._is_busy or self._call is not None:
            return
        if not group.alive or group.link is None or group.is_put_off(self.go_on):
            return
        call, link = group.number(), group.link
        self._call = call
        found = self._found

        def arrive() -> None:
            answer = group.server.propose(group.id, found)
            if answer is not None:
                link.send(lambda: self._answered(call, answer), up=False)

        group.up(arrive)
        group.world.after(ANSWER_TIMEOUT_S, lambda: self._time_out(call))

    def _time_out(self, call: int) -> None:
        if self._call == call:
            self._call = None
            self.go_on()

    def _answered(self, call: int, answer: ColdStartAnswer | Refusal) -> None:
        group = self._group
        if self._call != call or not group.alive or group.is_put_off(lambda: self._answered(call, answer)):
            return
        self._call = None
        if isinstance(answer, Refusal):
            group.die()
            return
        match answer.verdict:
            case ColdStart.WAIT:
                self._later(POLL_S, self.go_on)
            case ColdStart.LOOK:
                self._later(group.world.random.uniform(0.1, 0.6), self._look)
            case ColdStart.RESTORE:
                assert answer.save is not None
                self.loaded = answer.save
                if group.world.chance(STALLS):
                    self._stall()
                self._later(group.world.random.uniform(0.2, 1.5), self._load)
            case ColdStart.HEAL | ColdStart.FRESH:
                self._start()
            case ColdStart.LOST | ColdStart.FINISHED:
                raise AssertionError(f"{answer.verdict.name}: there is a save and no end")

    def _stall(self) -> None:
        """So much is read that the host stands still, and its connection is lost."""
        self._group.freeze(1.0)
        if self._group.link is not None:
            self._group.link.break_both()

    def _later(self, delay_s: float, act: Act) -> None:
        """The only thing that this group does until then."""

        def wake() -> None:
            if self._group.alive and not self._group.is_put_off(wake):
                self._is_busy = False
                act()

        self._is_busy = True
        self._group.world.after(delay_s, wake)

    def _look(self) -> None:
        is_new = self._group.server.disk.is_blank
        self._found = self._group.launcher.saves.look(may_be_blind=is_new)
        self.go_on()

    def _load(self) -> None:
        """Where the save is gone, the group wants to heal from others that had it in time."""
        assert self.loaded is not None
        if self._group.launcher.saves.may_load(self.loaded):
            self._group.step = self.loaded.step
        else:
            self.loaded, self.has_found_it_gone = None, True
        self._start()

    def _start(self) -> None:
        self.is_over = True
        self._group.ask()
