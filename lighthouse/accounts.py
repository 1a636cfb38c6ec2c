"""Where the time of a job's groups went, as they say, over all of their lives. Bounded, and no I/O.

A group tells where the time of its present life went. The time between two lives nobody can tell:
that is what is worked out here, so that the causes of a group add up to the time since this server
first heard of it, less the attempt that is under way.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from lighthouse.model import Key, ReplicaId

PRODUCTIVE = "productive"
# Between two lives, for which nobody else can speak: dead, or gone as planned.
DEAD = "detection"
AWAY = "not_provisioned"
# What a life had not settled when it ended, and what its successor did before it could speak.
CUT_SHORT = "ended_attempt"
STARTING = "restarting"
MAX_CAUSES = 32
# A life begins before it is heard of: until so long after a death, the next one may have begun.
START_S = 120.0
_CAUSE = re.compile(r"[a-z][a-z_]{0,31}")
_LONGEST_S = 1e9

Seconds = dict[str, float]


@dataclass(kw_only=True, slots=True)
class _Account:
    """Of one group: earlier lives and the times between, summed up, and the present life.

    `told` is what that has said as of `told_s`, of which `apart` is counted elsewhere. It began at
    `born_s`. `ended_s` is when it was lost; `left`, whether that was planned.
    """

    life: str
    born_s: float
    earlier: Seconds = field(default_factory=dict)
    told: Seconds = field(default_factory=dict)
    apart: Seconds = field(default_factory=dict)
    told_s: float = 0.0
    ended_s: float | None = None
    left: bool = False

    def seconds(self, now_s: float) -> Seconds:
        away = {AWAY if self.left else DEAD: self.surely_away_s(now_s)}
        return _sum(self.earlier, self.present(), away if any(away.values()) else {})

    def present(self) -> Seconds:
        return {cause: max(0.0, value - self.apart.get(cause, 0.0)) for cause, value in self.told.items()}

    def surely_away_s(self, now_s: float) -> float:
        """For how long there has been no life, of what no next one can claim."""
        return 0.0 if self.ended_s is None else max(0.0, now_s - self.ended_s - START_S)

    def was_here_after_all(self, told: Seconds, counted_s: float) -> None:
        """It was only cut off. What was counted as time without it stays so, and of its own that much not."""
        away = AWAY if self.left else DEAD
        self.earlier = _sum(self.earlier, {away: counted_s})
        for cause in sorted(told, key=lambda cause: self.told.get(cause, 0.0) - told[cause]):
            fresh_s = max(0.0, told[cause] - self.told.get(cause, 0.0))
            taken_s = min(counted_s, fresh_s)
            self.apart[cause] = self.apart.get(cause, 0.0) + taken_s
            counted_s -= taken_s

    def unsettled_s(self) -> float:
        """How much of its life it had not said the cause of when it last spoke."""
        return max(0.0, self.told_s - self.born_s - sum(self.told.values()))


class Accounts:
    """Seconds by cause of each group of a job since this server first heard of it. Time is handed in.

    Causes are whatever groups say, as long as they look like names. No sum ever falls.
    """

    def __init__(self, *, max_groups: int, since_s: float = float("-inf")) -> None:
        """`since_s` is when the server started: what was before is not counted."""
        self._accounts: OrderedDict[int, _Account] = OrderedDict()
        self._max_groups = max_groups
        self._since_s = since_s
        self._until_s = float("inf")

    def report(self, id: ReplicaId, seconds: Mapping[str, float], now_s: float) -> None:
        """A group tells where the time of its present life went. What cannot be is passed over."""
        told = _plausible(seconds)
        if not isinstance(id.key, int) or not told:
            return
        account = self._accounts.pop(id.key, None)
        if account is None:
            account = self._first_life(id.text, told, now_s)
        elif account.life != id.text:
            account = _next_life(account, id.text, told, now_s)
        elif counted_s := account.surely_away_s(now_s):
            account.was_here_after_all(told, counted_s)
        # A counter that fell would be taken for one that began anew.
        account.told |= {cause: max(account.told.get(cause, 0.0), told[cause]) for cause in told}
        account.told_s, account.ended_s = now_s, None
        self._accounts[id.key] = account
        while len(self._accounts) > self._max_groups:
            self._accounts.popitem(last=False)

    def end(self, id: ReplicaId, now_s: float, *, left: bool) -> None:
        """A life of a group is over; `left`: as planned, so that until it comes back, it is not dead."""
        account = self._accounts.get(id.key) if isinstance(id.key, int) else None
        if account is not None and account.life == id.text and (left or account.ended_s is None):
            account.ended_s, account.left = now_s, left

    def finish(self, now_s: float) -> None:
        """The job is finished: nobody is missed from now on."""
        self._until_s = min(self._until_s, now_s)

    def of(self, key: Key, now_s: float) -> Seconds:
        """Seconds by cause of one group; empty where it has said nothing."""
        account = self._accounts.get(key) if isinstance(key, int) else None
        return {} if account is None else account.seconds(min(now_s, self._until_s))

    def by_group(self, now_s: float) -> dict[int, Seconds]:
        """Seconds by cause, by group, in the order of their numbers."""
        return {key: self.of(key, now_s) for key in sorted(self._accounts)}

    def total(self, now_s: float) -> Seconds:
        """Seconds by cause of all groups together."""
        return _sum(*(self.of(key, now_s) for key in self._accounts))

    def _first_life(self, life: str, told: Seconds, now_s: float) -> _Account:
        """One that is older than this server has told an earlier one of its past."""
        born_s = now_s - sum(told.values())
        if born_s >= self._since_s:
            return _Account(life=life, born_s=born_s)
        return _Account(life=life, born_s=born_s, apart=told)


def goodput_ratio(seconds: Mapping[str, float]) -> float | None:
    """The share of productive seconds, None where there are no seconds at all."""
    whole = sum(seconds.values())
    return seconds.get(PRODUCTIVE, 0.0) / whole if whole > 0 else None


def _next_life(before: _Account, life: str, told: Seconds, now_s: float) -> _Account:
    """The account goes on with another life, which has been going on for as long as it tells.

    Where it began before what was counted as time without a life, it gives up that much of its start.
    """
    born_s = now_s - sum(told.values())
    counted_s = before.surely_away_s(now_s)
    gap_s = max(0.0, born_s - before.told_s)
    between = {AWAY if before.left else DEAD: max(gap_s, counted_s), CUT_SHORT: before.unsettled_s()}
    overlap_s = min(max(0.0, counted_s - gap_s), told.get(STARTING, 0.0))
    return _Account(
        life=life,
        born_s=born_s,
        earlier=_sum(before.earlier, before.present(), between),
        apart={STARTING: overlap_s} if overlap_s else {},
    )


def _plausible(seconds: Mapping[str, float]) -> Seconds:
    """What is told, less names that can be no cause and numbers that can be no seconds."""
    fit = {cause: value for cause, value in seconds.items() if _CAUSE.fullmatch(cause)}
    return {cause: fit[cause] for cause in _first(fit) if 0 <= fit[cause] < _LONGEST_S}


def _sum(*accounts: Seconds) -> Seconds:
    """Of MAX_CAUSES names at most, whatever was invented in how many lives."""
    causes = _first({cause for account in accounts for cause in account})
    return {cause: sum(account.get(cause, 0.0) for account in accounts) for cause in causes}


def _first(causes: Mapping[str, float] | set[str]) -> list[str]:
    return sorted(causes, key=lambda cause: (cause != PRODUCTIVE, cause))[:MAX_CAUSES]
