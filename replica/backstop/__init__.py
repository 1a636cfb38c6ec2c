"""Saves of the whole state, made behind the training and read when no group of the job is left.

Names are loaded when they are first used, so that programs which only look at saves start without
loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replica.backstop.backstop import Backstop, Boundary, Saved
    from replica.backstop.manifest import Facts, FileEntry, Manifest
    from replica.backstop.names import SaveName
    from replica.backstop.reading import read_save
    from replica.backstop.store import Save, Store, StoreError, Torn
    from replica.backstop.vault import Found
    from replica.backstop.writing import Fenced, SaveFailedError, Written, write_save

_HOME = {
    "Backstop": "backstop",
    "Boundary": "backstop",
    "Facts": "manifest",
    "Fenced": "writing",
    "FileEntry": "manifest",
    "Found": "vault",
    "Manifest": "manifest",
    "Save": "store",
    "SaveFailedError": "writing",
    "SaveName": "names",
    "Saved": "backstop",
    "Store": "store",
    "StoreError": "store",
    "Torn": "store",
    "Written": "writing",
    "read_save": "reading",
    "write_save": "writing",
}

__all__ = [
    "Backstop",
    "Boundary",
    "Facts",
    "Fenced",
    "FileEntry",
    "Found",
    "Manifest",
    "Save",
    "SaveFailedError",
    "SaveName",
    "Saved",
    "Store",
    "StoreError",
    "Torn",
    "Written",
    "read_save",
    "write_save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
