"""One rank of a group that saves and loads, in a process of its own, told what to do through a pipe."""

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import backstop_states as states
import fsspec
import torch
import torch._dynamo  # loaded at the first use of a DTensor; here before the ranks are forked
import torch.distributed as dist
from backstop_stores import Trouble

from replica.backstop.files import Files
from replica.backstop.manifest import Facts
from replica.backstop.names import SaveName
from replica.backstop.reading import read_save
from replica.backstop.store import Save, Store
from replica.backstop.writing import write_save

JOB = "waves"


class Rank:
    """What this process can be told; the answers travel back through the pipe."""

    def __init__(self) -> None:
        self.groups: dict[int, dist.ProcessGroup] = {}
        self.opened: list[tuple[str, str]] = []

    def join(self, folder: str, rank: int, world_size: int) -> int:
        """Meet the other ranks; afterwards there is a group of each size that this rank belongs to."""
        torch.set_num_threads(1)
        store = dist.FileStore(str(Path(folder) / "rendezvous"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        self.groups = {of: dist.new_group(list(range(of)), backend="gloo") for of in range(1, world_size + 1)}
        return os.getpid()

    def save(self, url: str, *, step: int, quorum_id: int, of: int = 1, **options: Any) -> dict[str, Any]:
        """Save the state whose seed is `step`."""
        incarnation = options.pop("incarnation", f"{quorum_id:08x}")
        arguments = {"keep": 3, "timeout_s": 60.0, **options}
        kinds = arguments.pop("kinds", states.KINDS)
        name = SaveName(step=step, quorum_id=quorum_id, incarnation=incarnation)
        store = Store(url, JOB)
        if at := arguments.pop("signal_at", None):
            store.files = Interrupted(store.files, *at)
        tensors = states.state(step, self.groups[of], kinds)
        began_s = time.monotonic()
        try:
            written = write_save(
                store, name, facts(incarnation, of), tensors, process_group=self.groups[of], **arguments
            )
        except Exception as error:
            seconds = time.monotonic() - began_s
            return {"error": type(error).__name__, "text": str(error), "seconds": seconds}
        return {"bytes": written.bytes, "purged": written.purged, "problem": written.purge_problem}

    def save_forever(self, url: str, *, quorum_id: int, kinds: Any, of: int) -> None:
        """Save step after step; the steps that are published go through the pipe."""
        step = quorum_id * 1000
        while True:
            step += 1
            answer = self.save(url, step=step, quorum_id=quorum_id, of=of, keep=2, kinds=kinds)
            if "error" in answer:  # a sibling was killed
                return
            CONNECTION.send(step)

    def load(self, url: str, *, folder: str, of: int = 1, kinds: Any = states.KINDS) -> Any:
        """Load a save; whether this rank's part is that of the state whose seed is the save's step."""
        store = Store(url, JOB)
        save = next(each for each in store.listed() if isinstance(each, Save) and each.name.text == folder)
        group = self.groups[of]
        tensors = states.state(save.name.step, group, kinds)
        expected = states.bytes_of(tensors)
        states.clear(tensors)
        try:
            read_save(store, save, tensors, process_group=group, rank=dist.get_rank(group), world_size=of)
        except Exception as error:
            return {"error": type(error).__name__, "text": str(error)}
        return [name for name, found in states.bytes_of(tensors).items() if found != expected[name]]

    def environment(self, variables: dict[str, str]) -> None:
        """Set variables, as a user does before the start."""
        os.environ.update(variables)

    def listed(self, url: str) -> list[tuple[str, str]]:
        """Folders of a store, and why they are torn; empty for those that are not."""
        listed = Store(url, JOB).listed()
        return [
            (each.name.text, "") if isinstance(each, Save) else (each.folder, each.why) for each in listed
        ]

    def verify(self, url: str, folder: str) -> list[str]:
        """What is wrong with a save."""
        store = Store(url, JOB)
        return store.verify(
            next(each for each in store.listed() if isinstance(each, Save) and each.name.text == folder)
        )

    def write(self, url: str, data: bytes) -> None:
        """Write a file past the store."""
        with fsspec.open(url, "wb") as file:
            file.write(data)

    def read(self, url: str) -> bytes:
        """Read a file past the store."""
        with fsspec.open(url, "rb") as file:
            return bytes(file.read())

    def buckets(self) -> list[str]:
        """The buckets of the S3 server."""
        return [str(bucket) for bucket in fsspec.filesystem("s3").ls("")]

    def trouble(self, **what: Any) -> None:
        """Let the troubled store fail, or be well again."""
        Trouble.fail_after_bytes = what.get("fail_after_bytes")
        Trouble.hang_in = what.get("hang_in", "")
        Trouble.loses = what.get("loses", False)

    def watch_opens(self, below: str) -> None:
        """Write down how files (not folders) below a folder are opened, from now on."""

        def note(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and str(arguments[0]).startswith(below):
                writes = arguments[2] & (os.O_WRONLY | os.O_RDWR)
                if not Path(arguments[0]).is_dir():
                    self.opened.append((str(arguments[0]), "write" if writes else "read"))

        sys.addaudithook(note)

    def opens(self) -> list[tuple[str, str]]:
        """What was opened."""
        return self.opened

    def io_threads(self) -> list[tuple[str, bool]]:
        """Threads that are left behind, and whether they let the process end."""
        return [(thread.name, thread.daemon) for thread in threading.enumerate() if "backstop" in thread.name]


class Interrupted:
    """The files of a store; this process gets a signal just before the operation with a given number."""

    def __init__(self, files: Files, number: int, what: int) -> None:
        self._files, self._left, self._signal = files, number, what

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if name in ("names", "sizes", "make_folder", "open_to_write", "rename_folder", "remove_folder"):
            if self._left == 0:
                # To this thread: it then goes no further, as it might if another one took the signal.
                signal.pthread_kill(threading.get_ident(), self._signal)
            self._left -= 1
        return found


def facts(incarnation: str, of: int) -> Facts:
    """Facts of a save of these tests."""
    return Facts(
        job=JOB,
        group=0,
        incarnation=incarnation,
        group_world_size=of,
        mode="exact",
        layout=7,
        digest="0" * 32,
        fingerprint="abc",
        platform="a test",
        configuration={"steps": 3},
        saved_at_s=1.5,
    )


CONNECTION: Connection


def main(connection: Connection) -> None:
    """Do what comes through the pipe, and answer, until the pipe ends."""
    global CONNECTION
    CONNECTION = connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank = Rank()
    while True:
        try:
            what, arguments, options = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            connection.send(getattr(rank, what)(*arguments, **options))
        except Exception as error:  # a test sees it
            connection.send(error)
