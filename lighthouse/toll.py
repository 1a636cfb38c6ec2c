"""What each death has cost so far, as the groups tell it. Bounded, and no I/O.

The group that died loses all of its time until it does productive work again, but for sums and
saves; the others lose the attempt that ended, and the way to a new quorum.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from lighthouse.accounts import CUT_SHORT, DEAD, PRODUCTIVE, STARTING

OTHERS_LOSE = (CUT_SHORT, "reconfiguring", "quorum")
VICTIM_LOSES = (*OTHERS_LOSE, DEAD, STARTING, "healing")
# By then the others have left the attempt that it ended, and have a new quorum; what they lose later
# has other causes.
OTHERS_PAY_S = 30.0
_MAX_RECENT = 16


@dataclass(kw_only=True, slots=True)
class Death:
    """Of group `group`, at `at_s`; `back_s` is how long it took until it was productive again.

    The seconds lost are those of the group itself and of all others. One that dies again before it
    is back has one death, which goes on.
    """

    group: int
    step: int
    cause: str
    at_s: float
    lost_before_s: float
    productive_before_s: float
    victim_s: float = 0.0
    others_s: float = 0.0
    back_s: float | None = None

    @property
    def lost_s(self) -> float:
        """Seconds lost by all groups together."""
        return self.victim_s + self.others_s


class Toll:
    """Deaths that were not planned. What the others lose while several are away is shared out evenly."""

    def __init__(self, *, max_groups: int) -> None:
        self.recent: deque[Death] = deque(maxlen=_MAX_RECENT)
        self._away: dict[int, Death] = {}
        self._lost_s: OrderedDict[int, float] = OrderedDict()
        self._settled_s: OrderedDict[int, float] = OrderedDict()
        self._max_groups = max_groups

    def died(self, group: int, step: int, cause: str, seconds: Mapping[str, float], now_s: float) -> None:
        """A group has died; `seconds` by cause are all that it has told until now."""
        if group in self._away or not seconds or len(self._away) >= self._max_groups:
            return
        death = Death(
            group=group,
            step=step,
            cause=cause,
            at_s=now_s,
            lost_before_s=_of(seconds, VICTIM_LOSES),
            productive_before_s=seconds.get(PRODUCTIVE, 0.0),
        )
        self._away[group] = death
        self.recent.append(death)

    def told(self, group: int, seconds: Mapping[str, float], now_s: float) -> None:
        """A group has told where all of its time went, by cause."""
        death = self._away.get(group)
        lost_s = _of(seconds, OTHERS_LOSE)
        more_s = lost_s - self._lost_s.pop(group, lost_s)
        self._lost_s[group] = lost_s
        _bound(self._lost_s, self._max_groups)
        if death is None:
            lately = [each for each in self._away.values() if now_s - each.at_s <= OTHERS_PAY_S]
            for each in lately:
                each.others_s += more_s / len(lately)
            return
        death.victim_s = _of(seconds, VICTIM_LOSES) - death.lost_before_s
        if seconds.get(PRODUCTIVE, 0.0) > death.productive_before_s:
            death.back_s = now_s - death.at_s
            self._settle(self._away.pop(group))

    def by_group(self) -> dict[int, float]:
        """Seconds that the deaths of each group have cost. None ever falls."""
        groups = sorted(self._settled_s.keys() | self._away.keys())
        return {group: self._settled_s.get(group, 0.0) + self._open_s(group) for group in groups}

    def _open_s(self, group: int) -> float:
        death = self._away.get(group)
        return 0.0 if death is None else death.lost_s

    def _settle(self, death: Death) -> None:
        self._settled_s[death.group] = self._settled_s.pop(death.group, 0.0) + death.lost_s
        _bound(self._settled_s, self._max_groups)


def _bound(known: OrderedDict[int, float], at_most: int) -> None:
    while len(known) > at_most:
        known.popitem(last=False)


def _of(seconds: Mapping[str, float], causes: tuple[str, ...]) -> float:
    return sum(seconds.get(cause, 0.0) for cause in causes)
