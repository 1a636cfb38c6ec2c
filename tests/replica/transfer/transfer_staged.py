"""What a staging holds, seen from inside: for tests of when it lets go."""

from replica.transfer.staging import Staging


def held_bytes(staging: Staging) -> int:
    """Bytes of the staged copy, 0 without one."""
    with staging._changed:
        return staging._copy.layout.nbytes if staging._copy else 0


def wait_freed(staging: Staging, timeout_s: float) -> bool:
    """Block until nothing is staged; False when that took longer than `timeout_s`."""
    with staging._changed:
        return staging._changed.wait_for(lambda: staging._copy is None, timeout_s)


def free(staging: Staging) -> None:
    """Free the copy before its time."""
    with staging._changed:
        staging._free()
