"""What a fetch amounted to: the state or why there is none, who sent how much, and what went wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique

import torch


@unique
class Fault(Enum):
    """What was wrong with a donor. The value is the name for metrics and events."""

    UNREACHABLE = "unreachable"  # cannot be connected to, or the connection broke
    STALLED = "stalled"
    WRONG_BYTES = "wrong_bytes"  # a chunk that is not what its checksum says
    WRONG_STEP = "wrong_step"  # a manifest of a step that was not asked for
    MALFORMED = "malformed"
    NEWER_STEP = "newer_step"
    GONE = "gone"  # its copy was freed or replaced meanwhile
    MISFIT = "misfit"  # other tensors than those here
    DRIFTED = "drifted"  # other bytes than those of the other donors
    REFUSED = "refused"  # one side could not prove that it is of this job


@unique
class Cause(Enum):
    """Why a fetch ended without the state. The value is the name for metrics and events."""

    INTERRUPTED = "interrupted"
    DEADLINE = "deadline"
    NO_DONOR = "no_donor"
    MISFIT = "misfit"
    REFUSED = "refused"
    DISAGREEMENT = "disagreement"


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """Something that went wrong with a donor (HOST:PORT), and around which tensor, where one was meant."""

    donor: str
    fault: Fault
    tensor: str | None
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DonorShare:
    """How many verified bytes came from a donor, and in how many seconds."""

    donor: str
    bytes: int
    seconds: float

    @property
    def mb_per_s(self) -> float:
        """Millions of bytes per second; 0 where nothing came."""
        return self.bytes / self.seconds / 1e6 if self.bytes and self.seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """The whole state of `step`, every byte of it verified. `incidents` are bounded in number."""

    step: int
    tensors: Mapping[str, torch.Tensor]
    bytes: int
    seconds: float
    donors: tuple[DonorShare, ...]
    incidents: tuple[Incident, ...]

    @property
    def mb_per_s(self) -> float:
        """Millions of bytes per second, from the call to its return."""
        return self.bytes / self.seconds / 1e6 if self.seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NotFetched:
    """No state. `torn`: own tensors may have been overwritten in part and must not be used."""

    cause: Cause
    sentence: str
    torn: bool
    seconds: float
    donors: tuple[DonorShare, ...]
    incidents: tuple[Incident, ...]
