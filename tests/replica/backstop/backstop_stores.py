"""Stores that make trouble: they fail or hang on demand, in ranks or in the process of the test."""

import threading
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from replica.backstop.store import Store


class Trouble:
    """What is to go wrong, in this process."""

    fail_after_bytes: int | None = None
    hang_in = ""
    loses = False
    never = threading.Event()

    @classmethod
    def meet(cls, doing: str) -> None:
        """Hang for good where that was asked for."""
        if cls.hang_in and doing == cls.hang_in:
            cls.never.wait()


class TroubledFileSystem(LocalFileSystem):
    """The local disk under trouble://."""

    protocol = "trouble"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(path).removeprefix("trouble://").rstrip("/")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        Trouble.meet("open")
        raw = super()._open(path, mode, **options)
        return TroubledFile(raw) if "w" in mode else raw

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        Trouble.meet("ls")
        return super().ls(path, detail=detail, **options)

    def rm(self, *arguments: Any, **options: Any) -> Any:
        Trouble.meet("rm")
        return super().rm(*arguments, **options)


class TroubledFile:
    """A file that is written, up to a point."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._written = raw, 0

    def write(self, data: Any) -> int:
        Trouble.meet("write")
        self._written += len(data)
        if Trouble.fail_after_bytes is not None and self._written > Trouble.fail_after_bytes:
            raise ConnectionResetError(104, "Connection reset by peer")
        return len(data) if Trouble.loses else int(self._raw.write(data))

    def __enter__(self) -> "TroubledFile":
        return self

    def __exit__(self, *exception: Any) -> None:
        self._raw.close()


class TroubledFiles:
    """The files of a store; `meet` is called with the name and the path of each operation, before it."""

    def __init__(self, store: Store, meet: Callable[[str, str], None]) -> None:
        self._files, self._meet = store.files, meet

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if not callable(found) or name == "where":
            return found

        def meet_and_do(path: str, *more: str) -> Any:
            self._meet(name, path)
            return found(path, *more)

        return meet_and_do


fsspec.register_implementation("trouble", TroubledFileSystem, clobber=True)
