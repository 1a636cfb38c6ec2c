"""Loaded by every Python process below it: notes each file below WATCHED that is opened for reading."""

import os
import sys
import time
from typing import Any

WATCHED, NOTES = os.environ.get("WATCHED", ""), os.environ.get("WATCHED_NOTES", "")


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str | bytes):
        return
    path, mode, flags = os.fsdecode(arguments[0]), arguments[1], arguments[2]
    reads = "r" in mode or "+" in mode if isinstance(mode, str) else flags & os.O_ACCMODE != os.O_WRONLY
    if reads and path.startswith(WATCHED) and not os.path.isdir(path):
        descriptor = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{time.time()} {path}\n".encode())
        os.close(descriptor)


if WATCHED:
    sys.addaudithook(note)
