"""What is seen at every look for long enough: a slow moment is nobody's fault. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Who seems slow for so long is named.
SLOW_FOR_S = 10.0


@dataclass(kw_only=True, slots=True)
class Persistence:
    """Since when each thing has been seen without a break. Keys are ranks, and None for all of a replica."""

    since_s: dict[int | None, float] = field(default_factory=dict)

    def look(self, seen: Mapping[int | None, float], now_s: float) -> dict[int | None, float]:
        """Of what is seen now, that which was seen at every look for SLOW_FOR_S."""
        self.since_s = {key: self.since_s.get(key, now_s) for key in seen}
        return {key: value for key, value in seen.items() if now_s - self.since_s[key] >= SLOW_FOR_S}
