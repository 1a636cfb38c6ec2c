"""How fast a job steps, who stands still while others wait, and who is steadily slower. Pure.

Reads like a walking group: the usual stride is known, so one who has not moved for many strides
while the others stand and wait is in trouble, and one who is merely slow is only named.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from lighthouse.model import Phase
from lighthouse.slot import Slot

_STRIDES = 64
_FEWEST_SAMPLES = 5
# Who needs more than so many times the median seems slow.
SLOW_RATIO = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class PaceRules:
    """How long one may stand still while another waits.

    The limit is `limit_factor` times the typical step and at least `limit_floor_s`; as long as no
    step is known, that many times the floor. A heal may take `heal_deadline_s`. From half its
    limit on a replica is suspect.
    """

    limit_factor: float = 10.0
    limit_floor_s: float = 30.0
    heal_deadline_s: float = 120.0


class Standing(Enum):
    """What to think of a member that stands still."""

    SUSPECT = "suspect"
    STUCK = "stuck"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A member that has not moved for `still_s`, while another waited; `limit_s` is its limit."""

    slot: Slot
    standing: Standing
    still_s: float
    limit_s: float


class Pace:
    """The recent steps of one job. Time is handed in."""

    def __init__(self, rules: PaceRules) -> None:
        self._rules = rules
        self._strides_s: deque[float] = deque(maxlen=_STRIDES)
        self._step = 0
        self._at_s: float | None = None
        self._over_s: float | None = None

    def quorum(self, max_step: int, now_s: float) -> None:
        """A quorum was issued at this step."""
        steps = max_step - self._step
        if self._at_s is not None and steps > 0:
            self._strides_s.append((now_s - self._at_s) / steps)
        self._step, self._at_s = max_step, now_s
        self._over_s = None

    @property
    def typical_step_s(self) -> float | None:
        """The median of the recent steps, or None before the first."""
        return median(self._strides_s) if self._strides_s else None

    def limit_s(self, phase: Phase) -> float:
        """How long a member may stand still in this phase while another waits."""
        rules = self._rules
        typical_s = self.typical_step_s
        known_s = rules.limit_floor_s if typical_s is None else typical_s
        limit_s = max(rules.limit_floor_s, rules.limit_factor * known_s)
        return max(limit_s, rules.heal_deadline_s) if phase is Phase.HEAL else limit_s

    def stalls(self, members: Sequence[Slot], now_s: float, *, over: bool) -> list[Stall]:
        """Members that stand still beyond half their limit, while another member waits for them.

        `over`: their attempt was given up, so that to wait in its reduce is no excuse any more, from
        then on. What a member did before anybody waited for it is its own affair, and one that saves
        the last state may take as long as its own timeout allows.
        """
        self._over_s = None if not over else now_s if self._over_s is None else self._over_s
        found = []
        for slot in members:
            waits_s = [_waits_since_s(other) for other in members if other is not slot and _waits(other)]
            reduces, saves = slot.phase is Phase.REDUCE, slot.phase is Phase.SAVE
            if not waits_s or slot.calls or not slot.lines or saves or (reduces and not over):
                continue
            over_s = self._over_s if reduces and self._over_s is not None else slot.moved_s
            still_s = now_s - max(slot.moved_s, min(waits_s), over_s)
            limit_s = self.limit_s(slot.phase)
            if still_s > limit_s / 2:
                standing = Standing.STUCK if still_s > limit_s else Standing.SUSPECT
                found.append(Stall(slot=slot, standing=standing, still_s=still_s, limit_s=limit_s))
        return found

    def is_jammed(self, members: Sequence[Slot], now_s: float) -> bool:
        """Whether all members have waited for each other beyond the limit, and none can be blamed.

        They are not jammed while one of them saves: that is what the others wait for.
        """
        reducing = [slot for slot in members if slot.phase is Phase.REDUCE and not slot.calls]
        limit_s = self.limit_s(Phase.REDUCE)
        return (
            bool(reducing)
            and all(_waits(slot) for slot in members)
            and all(now_s - slot.moved_s > limit_s for slot in reducing)
        )


def _waits(slot: Slot) -> bool:
    return bool(slot.calls) or slot.phase is Phase.REDUCE


def _waits_since_s(slot: Slot) -> float:
    return slot.joined_s if slot.calls and slot.joined_s is not None else slot.moved_s


def slowness(slots: Iterable[Slot]) -> dict[int | str, float]:
    """How many times the median of the others each replica needs for a round, where that is known."""
    usual_s = {
        slot.id.key: median(slot.computed_s) for slot in slots if len(slot.computed_s) >= _FEWEST_SAMPLES
    }
    ratios: dict[int | str, float] = {}
    for key, own_s in usual_s.items():
        others_s = [other_s for other, other_s in usual_s.items() if other != key]
        if others_s and median(others_s) > 0:
            ratios[key] = own_s / median(others_s)
    return ratios
