"""The copy of a state that a donor offers: hashed in the background, freed when nobody can want it."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import xxhash

from replica.transfer.manifest import Layout, Manifest
from replica.transfer.memory import copy_out, specs_of, view
from replica.transfer.wire import Code, Refusal


@dataclass(kw_only=True)
class _Copy:
    """One staged state. All but `step`, `layout` and `memory` is under the lock of its staging."""

    step: int
    layout: Layout
    memory: memoryview
    joiners: int
    expires_at_s: float
    manifest: Manifest | None = None
    body: bytes = b""
    finished: set[bytes] = field(default_factory=set)


class Staging:
    """At most one staged state. Used by the training thread, and by the threads that serve.

    A thread of its own, "headway-staging", computes checksums and frees what has expired.
    """

    def __init__(self, *, chunk_bytes: int, hold_s: float) -> None:
        self._chunk_bytes = chunk_bytes
        self._hold_s = hold_s
        self._changed = threading.Condition()
        self._copy: _Copy | None = None
        self._newest_step = -1
        self._closed = False
        self._keeper = threading.Thread(target=self._keep, name="headway-staging", daemon=True)
        self._keeper.start()

    def put(self, step: int, tensors: Mapping[str, torch.Tensor], *, joiners: int) -> None:
        """Copy the tensors and offer them to so many joiners, in place of what was offered before.

        Blocks for the copy only. Raises ValueError for tensors that cannot travel.
        """
        layout = Layout(tensors=specs_of(tensors), chunk_bytes=self._chunk_bytes)
        with self._changed:
            self._copy = None  # before the new copy is made: never two at once
        memory = view(copy_out(tensors, layout))
        expires_at_s = time.monotonic() + self._hold_s
        with self._changed:
            if self._closed:
                return
            self._copy = _Copy(
                step=step, layout=layout, memory=memory, joiners=joiners, expires_at_s=expires_at_s
            )
            self._newest_step = max(step, self._newest_step)
            self._changed.notify_all()

    def manifest(self, step: int) -> bytes | Refusal:
        """The encoded manifest of this step, or why there is none."""
        with self._changed:
            copy = self._copy
            if copy is not None and copy.step == step and copy.manifest is not None:
                return copy.body
            newest = self._newest_step
        if newest > step:
            return Refusal(code=Code.WRONG_STEP, detail=f"it is at step {newest}, not {step}")
        # A copy that was freed may be staged again for the next joiner: never a final no.
        return Refusal(code=Code.NOT_STAGED, detail=f"step {step} is not staged yet")

    def chunk(self, state_id: bytes, chunk: int) -> memoryview | Refusal:
        """The bytes of a chunk, or why there are none. They stay valid while they are held."""
        with self._changed:
            copy = self._copy
            if copy is None or copy.manifest is None or copy.manifest.state_id != state_id:
                return Refusal(code=Code.GONE, detail="that state is not staged here any more")
        if chunk >= copy.layout.chunks:
            return Refusal(code=Code.MALFORMED, detail=f"there are only {copy.layout.chunks} chunks")
        start, stop = copy.layout.bounds(chunk)
        return copy.memory[start:stop]

    def finished(self, state_id: bytes, joiner: bytes) -> None:
        """A joiner has this state; after the last expected one the copy is freed."""
        with self._changed:
            copy = self._copy
            if copy is None or copy.manifest is None or copy.manifest.state_id != state_id:
                return
            copy.finished.add(joiner)
            if len(copy.finished) >= copy.joiners:
                self._free()

    def step_of(self, state_id: bytes) -> int:
        """The step of this staged state, -1 when it is not staged any more."""
        with self._changed:
            copy = self._copy
            known = copy is not None and copy.manifest is not None and copy.manifest.state_id == state_id
            return copy.step if copy is not None and known else -1

    def close(self) -> None:
        """Free the copy and end the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._free()
        self._keeper.join()

    def _free(self) -> None:
        self._copy = None
        self._changed.notify_all()

    def _keep(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                copy = self._copy
                if copy is None or copy.manifest is not None:
                    del copy  # or this thread would keep what has been freed
                    self._wait_or_expire()
                    continue
            self._hash(copy)

    def _wait_or_expire(self) -> None:
        """Under the lock: wait for a change, or for the end of what is staged."""
        if self._copy is None:
            self._changed.wait()
            return
        left_s = self._copy.expires_at_s - time.monotonic()
        if left_s <= 0:
            self._free()
        else:
            self._changed.wait(left_s)

    def _hash(self, copy: _Copy) -> None:
        digests = []
        for chunk in range(copy.layout.chunks):
            start, stop = copy.layout.bounds(chunk)
            digests.append(xxhash.xxh3_64_digest(copy.memory[start:stop]))
            if self._copy is not copy:
                return
        manifest = Manifest(step=copy.step, layout=copy.layout, digests=tuple(digests))
        body, _ = manifest.encode(), manifest.state_id
        with self._changed:
            copy.manifest, copy.body = manifest, body
            self._changed.notify_all()
