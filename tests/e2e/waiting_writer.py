"""As `dying_writer`, but group 0 has group 1 come back and heal before it dies over its save."""

import time

import dying_writer

from lighthouse.client import SlotState
from replica.opening import Opening, Turn

next_turn = Opening.next_turn


def wait_for_the_joiner(opening: Opening) -> "object | Turn":
    """Asks for the last quorum only when group 1 does."""
    group = opening._group
    while group.config.group == 0 and group.step == group.config.steps:
        (job,) = (group.stream.status() or {"jobs": [{"groups": []}]})["jobs"]
        if any(row["group"] == 1 and row["state"] == SlotState.ASKING for row in job["groups"]):
            break
        time.sleep(0.05)
    return next_turn(opening)


Opening.next_turn = wait_for_the_joiner  # type: ignore[assignment, method-assign]
if __name__ == "__main__":
    dying_writer.main()
