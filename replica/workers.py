"""What a launcher does with its workers beside the agent: ask them to drain, end those of a dead group.

torchrun ends its workers when it gets SIGTERM, and reports a failure; a planned leave needs them to
finish their step and end by themselves. It also waits 30 s for the siblings of a dead rank before it
kills them, and they are of no use meanwhile.
"""

import os
import signal
import threading

from replica.proc import processes

SIBLINGS_S = 5


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


def end_siblings_soon() -> None:
    """Make torchrun's agent kill what is left of a group SIBLINGS_S after one of its ranks has failed.

    It asks them with SIGTERM first. One that waits for the dead rank in a call that no signal handler
    can interrupt, or that is stopped, does not hear; the agent alone would give it 30 s.
    """
    from torch.distributed.elastic.multiprocessing.api import PContext

    close = PContext.close

    def close_soon(self: PContext, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        close(self, death_sig, min(timeout, SIBLINGS_S))

    PContext.close = close_soon  # type: ignore[method-assign]
