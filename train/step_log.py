"""How training goes, for the log: a line at the first and the last step, and now and then between them."""

import logging
import time
from collections.abc import Callable, Sized

LOG = logging.getLogger("headway")
LINE_EVERY_S = 10.0


class StepLog:
    """Owned by the training loop, which tells it of every committed step.

    steps: the last one of the job. tokens_per_step: of all groups together. clock: seconds, rising.
    """

    def __init__(
        self, *, steps: int, tokens_per_step: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = steps
        self._tokens_per_step = tokens_per_step
        self._clock = clock
        self._said: tuple[int, float] | None = None  # the step of the last line, and when that was

    def committed(self, step: int, loss: float | None, groups: Sized) -> None:
        """`step` steps are committed now, the last one with this mean loss by this quorum.

        The rate is that of the job since the last line: steps that this group missed count too.
        """
        now_s, rate = self._clock(), ""
        if self._said is not None:
            step_before, then_s = self._said
            if now_s - then_s < LINE_EVERY_S and step < self._steps:
                return
            tokens = (step - step_before) * self._tokens_per_step
            rate = f"{tokens / max(now_s - then_s, 1e-9):.0f} tokens/s, "
        self._said = step, now_s
        count = f"{len(groups)} group" + "s" * (len(groups) != 1)
        LOG.info("step %s of %s: loss %.4f, %s%s", step, self._steps, loss, rate, count)
