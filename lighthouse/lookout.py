"""Looks out for replicas that fell silent, froze, or stand still while others wait. No I/O."""

from lighthouse.effects import Happening
from lighthouse.lag import SLOW_LAG
from lighthouse.model import label
from lighthouse.pace import SLOW_RATIO, Stall, Standing, slowness
from lighthouse.quorum_book import QuorumBook
from lighthouse.slot import Slot
from lighthouse.table import Effects, Table

_SLOW_LOOK_S = 1.0


class Lookout:
    """Asks the table and the pace of the job at every tick. Time is handed in."""

    def __init__(self, *, table: Table, book: QuorumBook, warm_until_s: float) -> None:
        self._table = table
        self._book = book
        self._warm_until_s = warm_until_s
        self._looked_for_slow_s = float("-inf")

    def look(self, now_s: float) -> Effects:
        """Count out whoever is lost, and name the suspect and the slow."""
        effects = self._silent(now_s) + self._frozen(now_s)
        if self._book.quorum is None and now_s >= self._warm_until_s:
            effects += self._missing()
        if not self._book.rules.torchft_rules:
            effects += self._stuck(now_s) + self._slow(now_s)
        return effects

    def evict(self, slot: Slot, cause: str, now_s: float) -> Effects:
        """Count an incarnation out for good, and tell those that are in an attempt with it."""
        return self._table.evict(slot, cause, now_s) + self._book.mourn(slot, cause)

    def _silent(self, now_s: float) -> Effects:
        silent, effects = self._table.mark_silent(now_s)
        for slot in silent:
            effects += self._book.mourn(slot, "its heartbeats stopped")
        return effects

    def _frozen(self, now_s: float) -> Effects:
        effects: Effects = []
        for slot, rank, silence_s in self._table.frozen(now_s):
            effects += self.evict(slot, f"rank {rank} has said nothing for {silence_s:.1f} s", now_s)
        return effects

    def _missing(self) -> Effects:
        """What a server which has just begun must give up: it has heard all that it will hear."""
        effects: Effects = []
        if not self._book.last and any(slot.is_in_attempt() for slot in self._table.slots.values()):
            effects += self._book.end_attempt("the Lighthouse was restarted and has no record of it")
        for key in self._book.last.keys() - self._table.slots.keys():
            cause = f"{label(key)} was not heard after a restart of the Lighthouse"
            effects += self._book.end_attempt(cause)
        return effects

    def _stuck(self, now_s: float) -> Effects:
        """Heartbeats come from a thread of their own and say nothing of training: watch the steps."""
        book, pace = self._book, self._book.pace
        members = [slot for slot in self._table.slots.values() if slot.gone is None and book.holds(slot)]
        effects: Effects = []
        for stall in pace.stalls(members, now_s, over=book.attempt_is_over):
            effects += self._act_on(stall, now_s)
        if not book.attempt_is_over and pace.is_jammed(members, now_s):
            effects += book.end_attempt("all members wait for each other")
        return effects

    def _act_on(self, stall: Stall, now_s: float) -> Effects:
        slot = stall.slot
        if stall.standing is Standing.STUCK:
            where = f"step {slot.step} ({slot.phase.name.lower()})"
            cause = f"no progress in {where} for {stall.still_s:.1f} s while others wait"
            return self.evict(slot, cause, now_s)
        if slot.suspect:
            return []
        slot.suspect = True
        fields = {"still_s": round(stall.still_s, 1), "limit_s": round(stall.limit_s, 1)}
        return [self._table.note(Happening.SUSPECT, slot, **fields)]

    def _slow(self, now_s: float) -> Effects:
        if now_s - self._looked_for_slow_s < _SLOW_LOOK_S:
            return []
        self._looked_for_slow_s = now_s
        effects: Effects = []
        ratios = slowness(slot for slot in self._table.slots.values() if slot.gone is None)
        for key, slot in self._table.slots.items():
            effects += self._name_slow(slot, ratios.get(key, 0.0), now_s)
        return effects

    def _name_slow(self, slot: Slot, ratio: float, now_s: float) -> Effects:
        """Name a replica, and ranks of it, once each of them has seemed slow for long."""
        seen: dict[int | None, float] = {rank: lag for rank, lag in slot.lags().items() if lag > SLOW_LAG}
        if ratio > SLOW_RATIO:
            seen[None] = ratio
        lasting = slot.seems_slow.look(seen, now_s)
        before, slot.slow = slot.slow, lasting.pop(None, 0.0)
        known, slot.slow_ranks = slot.slow_ranks, {r: lag for r, lag in lasting.items() if r is not None}
        effects: Effects = []
        if slot.slow and not before:
            effects.append(self._table.note(Happening.SLOW, slot, times_the_median=round(ratio, 2)))
        for rank in sorted(slot.slow_ranks.keys() - known.keys()):
            share = round(slot.slow_ranks[rank], 2)
            effects.append(self._table.note(Happening.SLOW, slot, rank=rank, others_wait_share=share))
        return effects
