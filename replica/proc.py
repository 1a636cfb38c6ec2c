"""The processes of this machine, as Linux' /proc shows them; the standard library only."""

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A living process: its parent's pid, and its state as one letter, such as R, S or T (stopped)."""

    parent: int
    state: str


def process(pid: int) -> Process | None:
    """What is known of a process; None if there is no such one, or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command's name stands in brackets and may itself hold brackets and spaces.
    state, parent = text[text.rfind(b")") + 2 :].decode().split(maxsplit=2)[:2]
    return None if state in ("Z", "X") else Process(parent=int(parent), state=state)


def processes() -> dict[int, Process]:
    """Every living process on the machine, by pid; none where there is no /proc."""
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:
        return {}
    found = ((int(name), process(int(name))) for name in names if name.isdigit())
    return {pid: each for pid, each in found if each is not None}


def age_s() -> float:
    """Seconds since this process was started; 0 where there is no /proc. Right to a hundredth."""
    try:
        with open("/proc/self/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0.0
    started_ticks = int(text[text.rfind(b")") + 2 :].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK"))
