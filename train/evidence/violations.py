"""The promises that a run can break, one by one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from replica.ledger import LedgerLine


class ViolationKind(StrEnum):
    """A promise that a run broke; the value names it in the report."""

    LINE_DAMAGED = "line_damaged"
    NOTHING_COMMITTED = "nothing_committed"
    STEP_FELL = "step_fell"
    STEP_REPLAYED = "step_replayed"
    STEP_MISSING = "step_missing"
    HEAL_MISSING = "heal_missing"
    HEAL_UNPROVEN = "heal_unproven"
    DIGEST_MISMATCH = "digest_mismatch"
    ROUNDS_WRONG = "rounds_wrong"
    ROUNDS_DIFFER = "rounds_differ"
    SAMPLE_LOST = "sample_lost"
    SAMPLE_REPEATED = "sample_repeated"
    ROUND_RECOMPUTED = "round_recomputed"
    INPUT_CHANGED = "input_changed"
    INPUT_REPEATED = "input_repeated"
    QUORUM_ID_FELL = "quorum_id_fell"
    QUORUM_ID_REUSED = "quorum_id_reused"
    SURVIVOR_RESTARTED = "survivor_restarted"
    LIFE_UNLAUNCHED = "life_unlaunched"
    BACKSTOP_READ = "backstop_read"
    RESTORES_DIFFER = "restores_differ"
    SAVE_UNPROVEN = "save_unproven"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken promise: which, where (as far as it has a place), and one sentence."""

    kind: ViolationKind
    text: str
    group: int | None = None
    step: int | None = None
    quorum_id: int | None = None

    @classmethod
    def at(cls, kind: ViolationKind, line: LedgerLine, text: str) -> Self:
        """A violation at the place of a ledger line."""
        return cls(kind=kind, text=text, group=line.group, step=line.step, quorum_id=line.quorum_id)
