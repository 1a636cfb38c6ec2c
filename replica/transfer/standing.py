"""How far a donor is to be trusted: what its faults add up to. Pure."""

from dataclasses import dataclass

from replica.transfer.report import Fault

MAX_LIES = 2
MAX_FAILURES_IN_A_ROW = 8
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

LIES = frozenset({Fault.WRONG_BYTES, Fault.WRONG_STEP, Fault.MALFORMED})
PASSING = frozenset({Fault.UNREACHABLE, Fault.STALLED, Fault.GONE})


@dataclass(kw_only=True)
class Standing:
    """What is held against one donor. `out` is why nothing more is asked of it, or None.

    Lies are counted for good; connections that break or stall, and copies that are gone, only while
    nothing good comes in between. Every other fault is final at once.
    """

    lies: int = 0
    in_a_row: int = 0
    out: Fault | None = None

    def blame(self, fault: Fault) -> None:
        """Hold a fault against the donor."""
        self.lies += fault in LIES
        self.in_a_row += fault in PASSING
        final = fault not in LIES and fault not in PASSING
        if final or self.lies >= MAX_LIES or self.in_a_row >= MAX_FAILURES_IN_A_ROW:
            self.out = self.out or fault

    def praise(self) -> None:
        """Something good came from it: it is there."""
        self.in_a_row = 0

    @property
    def lied_out(self) -> bool:
        """Whether it is out for lying: then its word on what the state is counts no more either."""
        return self.lies >= MAX_LIES

    def pause_s(self, jitter: float) -> float:
        """How long to wait before it is tried again; `jitter` is from 0 to 1."""
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self.in_a_row + self.lies - 1))
        return longest * (0.5 + jitter / 2)
