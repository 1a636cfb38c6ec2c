"""What holds the next quorum up, since when, and whether that was worth a line in the log yet."""

from lighthouse.effects import Happening, Note
from lighthouse.quorum import Reason, Waiting, sentence


class Patience:
    """Keeps the last answer of the decision while there is no quorum. Time is handed in."""

    def __init__(self, *, job: str, note_after_s: float) -> None:
        self.waiting = Waiting(reason=Reason.NO_ASKS)
        self._job = job
        self._note_after_s = note_after_s
        self._since_s: float | None = None
        self._noted: Reason | None = None

    def wait(self, waiting: Waiting, now_s: float) -> None:
        """There is no quorum yet, for this reason."""
        self.waiting = waiting
        if waiting.reason is Reason.NO_ASKS:
            self.end()
        elif self._since_s is None:
            self._since_s = now_s

    def end(self) -> None:
        """Nobody waits any more."""
        self.waiting = Waiting(reason=Reason.NO_ASKS)
        self._since_s = self._noted = None

    def note(self, now_s: float) -> list[Note]:
        """Say once for each reason what holds a quorum up, when it takes long."""
        reason = self.waiting.reason
        if self._since_s is None or now_s - self._since_s < self._note_after_s or self._noted is reason:
            return []
        self._noted = reason
        fields = {"job": self._job, "reason": reason.value, "why": sentence(self.waiting)}
        return [Note(happening=Happening.WAITING, fields=fields)]
