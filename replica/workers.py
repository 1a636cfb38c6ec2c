"""What a launcher does with its workers beside torchrun's agent: ask them to drain, end frozen ones.

torchrun ends its workers when it gets SIGTERM, and reports a failure; a planned leave needs them to
finish their step and end by themselves. It also waits 30 s for a worker that was stopped before it
kills it, and a group with a frozen rank is of no use meanwhile.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

from replica.proc import processes

POLL_INTERVAL_S = 0.5
FROZEN_S = 5.0
STOPPED = frozenset("Tt")


def children_of(pid: int) -> dict[int, str]:
    """Pids of the direct children of `pid`, each with its state letter; empty where /proc is not."""
    return {child: each.state for child, each in processes().items() if each.parent == pid}


def forward_sigterm(grace_s: float) -> threading.Event:
    """From now on, hand SIGTERM to the workers, and kill what is left of them after `grace_s`.

    Returns an event that is set once SIGTERM has come. Must be called on the main thread; the
    handler returns at once.
    """
    came = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        came.set()
        signal_all(children_of(os.getpid()), signal.SIGTERM)
        timer = threading.Timer(grace_s, lambda: signal_all(children_of(os.getpid()), signal.SIGKILL))
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, on_signal)
    return came


def signal_all(pids: dict[int, str], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may be gone by now."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class FrozenWorkers:
    """Decides which workers to kill: those that stay stopped after a sibling has gone (pure).

    A stopped worker alone may be a debugger's doing; with a rank gone, the group has to end.
    """

    def __init__(self, frozen_s: float = FROZEN_S) -> None:
        self._frozen_s = frozen_s
        self._most = 0
        self._since_s: float | None = None

    def to_kill(self, workers: dict[int, str], now_s: float) -> list[int]:
        """Pids to kill, given the workers that are left and their states."""
        self._most = max(self._most, len(workers)) if workers else 0
        stopped = [pid for pid, state in workers.items() if state in STOPPED]
        if not stopped or len(workers) == self._most:
            self._since_s = None
            return []
        if self._since_s is None:
            self._since_s = now_s
        return stopped if now_s - self._since_s >= self._frozen_s else []


def watch_for_frozen_workers(clock: Callable[[], float] = time.monotonic) -> None:
    """Start a daemon thread that kills stopped workers of a group that has lost a rank."""

    def watch() -> None:
        frozen = FrozenWorkers()
        while True:
            workers = children_of(os.getpid())
            signal_all(dict.fromkeys(frozen.to_kill(workers, clock()), ""), signal.SIGKILL)
            time.sleep(POLL_INTERVAL_S)

    threading.Thread(target=watch, name="headway-frozen-workers", daemon=True).start()
