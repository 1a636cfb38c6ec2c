"""The joiner's side: reads one state from all donors at once, and returns only what is verified."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lighthouse.tls import Tls
from replica.transfer.gathering import Gathering, Progress
from replica.transfer.lane import Lane, LaneSettings
from replica.transfer.line import new_joiner
from replica.transfer.manifest import MIN_CHUNK_BYTES, Layout, Limits, max_encoded_bytes
from replica.transfer.memory import specs_of
from replica.transfer.report import Cause, Fetched, NotFetched
from replica.transfer.tls_line import calling_line

MAX_DONORS = 16
POLL_S = 0.02
MANIFEST_BYTES_WITHOUT_LAYOUT = 64 << 20


@dataclass(frozen=True, kw_only=True)
class FetchSettings:
    """How a joiner reads. Times in seconds.

    A donor from which nothing comes for `stall_s`, or a chunk not within `chunk_s`, is left and asked
    again later; a chunk that is late while others have nothing to do is asked elsewhere sooner. After
    the first offer of a state the others are waited for at most `gather_s`, so that donors which have
    drifted apart are seen. `connections` is how many are held to each donor.
    """

    connections: int = 2
    connect_s: float = 5.0
    stall_s: float = 2.0
    chunk_s: float = 20.0
    gather_s: float = 1.0
    ask_again_s: float = 0.02

    def __post_init__(self) -> None:
        """Raises ValueError for settings that cannot work."""
        times = (self.connect_s, self.stall_s, self.chunk_s, self.ask_again_s)
        if min(times) <= 0 or self.gather_s < 0 or self.connections < 1:
            raise ValueError("the times of a fetch must be above 0, and its connections at least 1")


def fetch(
    donors: Sequence[str],
    *,
    step: int,
    expected: Mapping[str, torch.Tensor] | Limits,
    fresh: bool,
    timeout_s: float,
    interrupted: Callable[[bool], bool] = lambda torn: False,
    token: bytes = b"",
    tls: Tls | None = None,
    settings: FetchSettings | None = None,
    jitter: Callable[[], float] = random.random,
) -> Fetched | NotFetched:
    """Read the state of `step` from donors (HOST:PORT each; the first MAX_DONORS of them are asked).

    With more donors than that, let joiners begin the list at different places. `expected` are this
    rank's own tensors, which the state must fit by name, type, shape and order. With `fresh` the bytes
    go straight into them: unless the result is a Fetched they may be torn. Without, new tensors are
    made. Where nothing is known beforehand, `expected` is how much may be taken. With `tls`, donors must
    show a certificate of its CA, and nothing goes in the clear.

    A donor that has not staged the step yet, or has freed it, is asked again until it has. Blocks
    until every chunk is verified, a cause ends it, `timeout_s` is over, or `interrupted(torn)`, which is
    asked every 20 ms on this thread; torn: own tensors are overwritten in part. When it returns,
    nothing writes to the tensors any more.
    Raises ValueError for own tensors that cannot travel.
    """
    started_s = time.monotonic()
    chosen = settings or FetchSettings()
    addresses = list(dict.fromkeys(donors))[:MAX_DONORS]
    gathering = Gathering(
        addresses,
        step=step,
        expected=expected,
        fresh=fresh,
        gather_s=chosen.gather_s,
        late_s=chosen.stall_s,
        jitter=jitter,
    )
    lanes = _lane_settings(expected, token, tls, chosen)
    outcome: Cause | Progress = Cause.INTERRUPTED
    try:
        for address in addresses:
            for number in range(chosen.connections):
                Lane(gathering, address, lanes, first=number == 0)
        outcome = _wait(gathering, started_s + timeout_s, interrupted)
    finally:
        gathering.end(succeeded=outcome is Progress.COMPLETE)
    return _result(gathering, outcome, timeout_s, started_s)


def _wait(gathering: Gathering, deadline_s: float, interrupted: Callable[[bool], bool]) -> Cause | Progress:
    """Block until the state is complete, or there is a cause why it does not come."""
    while True:
        now = time.monotonic()
        outcome = gathering.judge(now)
        if outcome is not Progress.PENDING:
            return outcome
        if interrupted(gathering.torn):
            return Cause.INTERRUPTED
        if now >= deadline_s:
            return Cause.DEADLINE
        gathering.wait_changed(min(POLL_S, deadline_s - now))


def _lane_settings(
    expected: Mapping[str, torch.Tensor] | Limits, token: bytes, tls: Tls | None, settings: FetchSettings
) -> LaneSettings:
    if isinstance(expected, Limits):
        limits, max_manifest_bytes = expected, MANIFEST_BYTES_WITHOUT_LAYOUT
    else:
        layout = Layout(tensors=specs_of(expected), chunk_bytes=MIN_CHUNK_BYTES)
        # A little more than fits is read, so that a misfit can be told by the name of the tensor.
        limits = Limits(tensors=2 * len(layout.tensors) + 100, nbytes=4 * layout.nbytes + (1 << 30))
        max_manifest_bytes = max_encoded_bytes(layout)
    return LaneSettings(
        token=token,
        joiner=new_joiner(),
        limits=limits,
        max_manifest_bytes=max_manifest_bytes,
        connect_s=settings.connect_s,
        stall_s=settings.stall_s,
        chunk_s=settings.chunk_s,
        ask_again_s=settings.ask_again_s,
        make=calling_line(tls),
    )


def _result(
    gathering: Gathering, outcome: Cause | Progress, timeout_s: float, started_s: float
) -> Fetched | NotFetched:
    shares, incidents = gathering.shares(), gathering.incidents()
    destination = gathering.destination
    if isinstance(outcome, Cause) or destination is None:
        cause = outcome if isinstance(outcome, Cause) else Cause.INTERRUPTED
        return NotFetched(
            cause=cause,
            sentence=_sentence(cause, gathering, timeout_s),
            torn=gathering.torn,
            seconds=time.monotonic() - started_s,
            donors=shares,
            incidents=incidents,
        )
    destination.finish()
    return Fetched(
        step=gathering.step,
        tensors=destination.tensors,
        bytes=sum(share.bytes for share in shares),
        seconds=time.monotonic() - started_s,
        donors=shares,
        incidents=incidents,
    )


def _sentence(cause: Cause, gathering: Gathering, timeout_s: float) -> str:
    what = f"the state of step {gathering.step}"
    donors = gathering.last_words() or "there is none"
    match cause:
        case Cause.INTERRUPTED:
            return f"fetching {what} was interrupted"
        case Cause.DEADLINE:
            return f"{what} did not come within {timeout_s:g} s ({donors})"
        case Cause.NO_DONOR:
            return f"no donor is left that can give {what} ({donors})"
        case Cause.MISFIT:
            return f"{what} does not fit the tensors here: is it the same model? ({donors})"
        case Cause.REFUSED:
            return (
                f"no donor of {what} can be trusted with what is held here: same token, same CA? ({donors})"
            )
        case Cause.DISAGREEMENT:
            return f"the donors offer different values for {what}, and none has more than half ({donors})"
