"""Follows ledgers and events while other processes write them."""

import itertools
import json
import statistics
from collections import deque
from pathlib import Path
from typing import Any

_PACE_WINDOW = 10


class LineFollower:
    """Reads the lines that were added to a JSON lines file since the last look.

    A line counts when it is whole; one that is torn is left to those who judge the evidence.
    One caller at a time; nothing blocks longer than a read of the new bytes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """The whole lines since the last call, parsed; empty while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        parsed = (_parsed(text) for text in whole.splitlines())
        return [entry for entry in parsed if entry is not None]


class GroupProgress:
    """What one group's ledger tells of its progress.

    commits: committed lines so far. step: steps committed, by the last commit or the save that was read
    after it. loss: of the last commit.
    heard_t: wall clock of the last line of any outcome.
    """

    def __init__(self, path: Path) -> None:
        self._follower = LineFollower(path)
        self._recent: deque[tuple[int, float]] = deque(maxlen=_PACE_WINDOW)
        self.commits = 0
        self.step = 0
        self.loss: float | None = None
        self.heard_t: float | None = None

    def look(self) -> None:
        """Takes in the lines added since the last look."""
        for entry in self._follower.new_lines():
            self.heard_t = entry.get("t")
            if entry.get("outcome") == "committed":
                self._take_commit(entry)

    def mark_restored(self, step: int, t: float) -> None:
        """Takes note that the group had read a save of this step by then (wall clock)."""
        if not self._recent or self._recent[-1][1] <= t:
            self.step = step

    @property
    def step_s(self) -> float | None:
        """Median seconds from one commit to the next, over the last ten; None before the second."""
        if len(self._recent) < 2:
            return None
        pairs = itertools.pairwise(self._recent)
        gaps = [after_t - before_t for (before, before_t), (after, after_t) in pairs if after == before + 1]
        return statistics.median(gaps) if gaps else None

    def _take_commit(self, entry: dict[str, Any]) -> None:
        self.commits += 1
        self.step = int(entry["step"]) + 1
        self.loss = entry.get("loss")
        self._recent.append((int(entry["step"]), float(entry["t"])))


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
