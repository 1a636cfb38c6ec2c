"""Which rank of a group its other ranks wait for, from how long each of them waits in its rounds. Pure.

The ranks of a group meet many times in a round, so that all of them take equally long for it, whoever
is slow: the slow one is the one that never waits. Straggler detection by time in collectives, as in
NVIDIA's resiliency extension and MegaScale (Jiang et al., 2024), without traces.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

# The others wait for a third of each round: alone, it needs one and a half times what they need.
SLOW_LAG = 1 / 3
_FEWEST_PULSES = 5
_LONGEST_S = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """Of one life of a rank so far: seconds in rounds, and how many of them it waited for other ranks."""

    rounds_s: float
    waited_s: float

    def is_plausible(self) -> bool:
        """Whether it can be true at all. It comes from the network."""
        known = math.isfinite(self.rounds_s) and math.isfinite(self.waited_s)
        return known and 0 <= self.waited_s <= self.rounds_s <= _LONGEST_S


@dataclass(kw_only=True, slots=True)
class Waits:
    """What one rank has told of its rounds lately, over one stream."""

    told: deque[RoundTimes] = field(default_factory=lambda: deque(maxlen=16))

    def tell(self, times: RoundTimes) -> None:
        """Take in a pulse. One that tells of no new round, or that cannot be true, is passed over."""
        if times.is_plausible() and (not self.told or times.rounds_s > self.told[-1].rounds_s):
            self.told.append(times)

    def share(self) -> float | None:
        """The share of its latest rounds that it waited, or None while too few are known."""
        if len(self.told) <= _FEWEST_PULSES:
            return None
        first, last = self.told[0], self.told[-1]
        share = (last.waited_s - first.waited_s) / (last.rounds_s - first.rounds_s)
        return min(1.0, max(0.0, share))


def lags(waits: Mapping[int, Waits]) -> dict[int, float]:
    """For each rank of a group: for what share of a round the others wait for it. 0 to 1.

    Measured against the median of the others; empty unless there are two ranks that tell.
    """
    shares = {rank: share for rank, each in waits.items() if (share := each.share()) is not None}
    found: dict[int, float] = {}
    for rank, own in shares.items():
        others = [share for other, share in shares.items() if other != rank]
        if others:
            found[rank] = max(0.0, median(others) - own)
    return found
