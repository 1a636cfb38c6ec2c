"""Where the time of a job's groups went, as they say, over all of their lives. Bounded, and no I/O."""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from lighthouse.model import Key, ReplicaId

PRODUCTIVE = "productive"
# Between two lives, for which nobody else can speak: dead, or gone as planned.
DEAD = "detection"
AWAY = "not_provisioned"
MAX_CAUSES = 32
_CAUSE = re.compile(r"[a-z][a-z_]{0,31}")
_LONGEST_S = 1e9

Seconds = dict[str, float]


@dataclass(kw_only=True, slots=True)
class _Account:
    """Of one group: earlier lives, summed up, and the present one as of `told_s`."""

    life: str
    earlier: Seconds = field(default_factory=dict)
    present: Seconds = field(default_factory=dict)
    told_s: float = 0.0
    left: bool = False

    def seconds(self) -> Seconds:
        return _sum(self.earlier, self.present)


class Accounts:
    """Seconds by cause of each group of a job since this server first heard of it. Time is handed in.

    Causes are whatever groups say, as long as they look like names: PRODUCTIVE alone means something
    here.
    """

    def __init__(self, *, max_groups: int) -> None:
        self._accounts: OrderedDict[int, _Account] = OrderedDict()
        self._max_groups = max_groups

    def report(self, id: ReplicaId, seconds: Mapping[str, float], now_s: float) -> None:
        """A group tells where the time of its present life went. What cannot be is passed over.

        The time since an earlier life of it, less the time that this one has been going on, was spent
        dead, or away if it had left.
        """
        told = _plausible(seconds)
        if not isinstance(id.key, int) or not told:
            return
        account = self._accounts.pop(id.key, None) or _Account(life=id.text)
        if account.life != id.text:
            account = _next_life(account, id.text, now_s - sum(told.values()))
        # A counter that fell would be taken for one that began anew.
        account.present |= {cause: max(account.present.get(cause, 0.0), told[cause]) for cause in told}
        account.told_s = now_s
        self._accounts[id.key] = account
        while len(self._accounts) > self._max_groups:
            self._accounts.popitem(last=False)

    def leave(self, id: ReplicaId) -> None:
        """A group has left as planned: until it comes back, it is away and not dead."""
        account = self._accounts.get(id.key) if isinstance(id.key, int) else None
        if account is not None and account.life == id.text:
            account.left = True

    def of(self, key: Key) -> Seconds:
        """Seconds by cause of one group; empty where it has said nothing."""
        account = self._accounts.get(key) if isinstance(key, int) else None
        return {} if account is None else account.seconds()

    def by_group(self) -> dict[int, Seconds]:
        """Seconds by cause, by group, in the order of their numbers. None ever falls."""
        return {key: self._accounts[key].seconds() for key in sorted(self._accounts)}

    def total(self) -> Seconds:
        """Seconds by cause of all groups together."""
        return _sum(*(account.seconds() for account in self._accounts.values()))


def goodput_ratio(seconds: Mapping[str, float]) -> float | None:
    """The share of productive seconds, None where there are no seconds at all."""
    whole = sum(seconds.values())
    return seconds.get(PRODUCTIVE, 0.0) / whole if whole > 0 else None


def _next_life(before: _Account, life: str, began_s: float) -> _Account:
    between = {AWAY if before.left else DEAD: max(0.0, began_s - before.told_s)}
    return _Account(life=life, earlier=_sum(before.seconds(), between))


def _plausible(seconds: Mapping[str, float]) -> Seconds:
    """What is told, less names that can be no cause and numbers that can be no seconds."""
    fit = {cause: value for cause, value in seconds.items() if _CAUSE.fullmatch(cause)}
    return {cause: fit[cause] for cause in sorted(fit)[:MAX_CAUSES] if 0 <= fit[cause] < _LONGEST_S}


def _sum(*accounts: Seconds) -> Seconds:
    """Of the first MAX_CAUSES names, whatever was invented in how many lives."""
    causes = sorted({cause for account in accounts for cause in account})[:MAX_CAUSES]
    return {cause: sum(account.get(cause, 0.0) for account in accounts) for cause in causes}
