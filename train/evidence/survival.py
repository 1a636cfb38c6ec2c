"""How each kill was survived: what was hit, how long the others waited, when the victim was back; pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from replica.ledger import EventKind
from train.evidence.blows import find_blows
from train.evidence.eras import Eras
from train.evidence.files import Evidence
from train.evidence.history import commits_by_step


def survival(
    evidence: Evidence,
    eras: Eras,
    *,
    costs: Sequence[Mapping[str, Any]],
    stalls_s: Sequence[float | None],
    rejoins_s: Sequence[float | None],
) -> list[dict[str, Any]]:
    """A row for each blow, in order of time: its row of `costs`, and what became of the job.

    costs, stalls_s, rejoins_s: what `goodput.by_kill` and `figures` tell of each. Added to a row are
    `stall_s`, what the others waited for a commit beyond a typical step; `rejoin_s`, from the blow to the
    victim's next commit; and `rounds_recomputed`, the rounds that were computed once more until the next
    blow. Each of the first two is None where there was no such commit.
    """
    again = _recomputed(evidence, eras, [blow.t for blow in find_blows(evidence)])
    return [
        {
            **cost,
            "stall_s": _rounded(stall_s),
            "rejoin_s": _rounded(rejoin_s),
            "rounds_recomputed": again[index],
        }
        for index, (cost, stall_s, rejoin_s) in enumerate(zip(costs, stalls_s, rejoins_s, strict=True))
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _recomputed(evidence: Evidence, eras: Eras, times: list[float]) -> Counter[int]:
    """By index of the last blow before: rounds of committed steps that another attempt had done already."""
    committed = commits_by_step(evidence)
    done: dict[tuple[int, int, int], set[int]] = {}
    found: Counter[int] = Counter()
    for event in sorted(evidence.of(EventKind.ROUND_DONE), key=lambda event: event.t):
        step, quorum_id = event.integer("step") or 0, event.integer("quorum_id") or 0
        place = eras.at(quorum_id).number, step, event.integer("round") or 0
        before = done.setdefault(place, set())
        if step in committed and before and quorum_id not in before:
            found[bisect_right(times, event.t) - 1] += 1
        before.add(quorum_id)
    return found
