"""What a training script needs to be a replica group: `ReplicaGroup`, and `run` around its main.

Names are loaded when they are first used, so that the launcher and other small programs of this
package start without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replica.attempt import Attempt, MicroBatch
    from replica.config import GroupConfig, Timeouts
    from replica.errors import ExitCode, RestartError, UserError
    from replica.exit import run
    from replica.group import ReplicaGroup

_HOME = {
    "Attempt": "replica.attempt",
    "ExitCode": "replica.errors",
    "GroupConfig": "replica.config",
    "MicroBatch": "replica.attempt",
    "ReplicaGroup": "replica.group",
    "RestartError": "replica.errors",
    "Timeouts": "replica.config",
    "UserError": "replica.errors",
    "run": "replica.exit",
}

__all__ = [
    "Attempt",
    "ExitCode",
    "GroupConfig",
    "MicroBatch",
    "ReplicaGroup",
    "RestartError",
    "Timeouts",
    "UserError",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
