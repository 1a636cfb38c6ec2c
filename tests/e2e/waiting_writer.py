"""As `dying_writer`, but group 0 has group 1 come back and heal before it dies over its save."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import dying_writer

from lighthouse.client import LighthouseError, Phase, SlotState, status
from replica.backstop import backstop
from replica.backstop.names import SaveName
from replica.backstop.store import Store
from replica.opening import Opening, Turn

# Well below the limit that the test sets for the whole run.
JOINER_S = 120.0
IS_WRITER = os.environ["REPLICA_GROUP_ID"] == "0"
STEPS = int(os.environ["HEADWAY_STEPS"])
# Read before the group takes it out of the environment, away from torchft's Manager.
LIGHTHOUSE = os.environ["TORCHFT_LIGHTHOUSE"]

next_turn, write_save = Opening.next_turn, backstop.write_save


def wait_for_group_1(what: str, condition: Callable[[Mapping[str, Any]], bool]) -> None:
    """Block until the Lighthouse says so. Raises TimeoutError."""
    deadline_s = time.monotonic() + JOINER_S
    while not any(row["group"] == 1 and condition(row) for row in rows()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"group 1 {what} not within {JOINER_S:g} s")
        time.sleep(0.05)


def rows() -> list[dict[str, Any]]:
    try:
        jobs = status(LIGHTHOUSE)["jobs"]
    except LighthouseError:
        return []
    return [row for job in jobs for row in job["groups"]]


def ask_with_the_joiner(opening: Opening) -> "object | Turn":
    """Asks for the last quorum only when group 1 does."""
    if IS_WRITER and opening._group.step == STEPS:
        wait_for_group_1("asks", lambda row: row["state"] == SlotState.ASKING)
    return next_turn(opening)


def die_when_it_has_healed(store: Store, name: SaveName, *args: Any, **kwargs: Any) -> Any:
    """Dies over the last save when group 1 has the last state, and waits for that save."""
    if IS_WRITER and name.step == STEPS:
        saving = Phase.SAVE.name.lower()
        wait_for_group_1("has the state", lambda row: (row["step"], row["phase"]) == (STEPS, saving))
    return write_save(store, name, *args, **kwargs)


Opening.next_turn = ask_with_the_joiner  # type: ignore[assignment, method-assign]
backstop.write_save = die_when_it_has_healed
if __name__ == "__main__":
    dying_writer.main()
