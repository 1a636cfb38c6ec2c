"""Stores that make trouble: an fsspec file system on a local folder that fails or hangs on demand."""

import threading
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


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


fsspec.register_implementation("trouble", TroubledFileSystem, clobber=True)
