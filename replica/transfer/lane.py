"""One lane between a joiner and a donor: a thread that connects, asks, checks, and tries again."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from replica.transfer.gathering import Gathering, Task
from replica.transfer.line import (
    Line,
    LineDeadError,
    LineError,
    LineMaker,
    LineMalformedError,
    LineRefusedError,
    LineStalledError,
    dial,
    introduce,
)
from replica.transfer.manifest import BadManifest, Limits, Manifest, decode
from replica.transfer.report import Fault
from replica.transfer.wire import AskChunk, AskManifest, ChunkIs, Code, Done, ManifestIs, Refusal

_FAULT_OF_ERROR = {
    LineDeadError: Fault.UNREACHABLE,
    LineStalledError: Fault.STALLED,
    LineMalformedError: Fault.MALFORMED,
    LineRefusedError: Fault.REFUSED,
}
_FAULT_OF_CODE = {
    Code.NOT_STAGED: Fault.GONE,  # in answer to a question for a chunk
    Code.WRONG_STEP: Fault.NEWER_STEP,
    Code.GONE: Fault.GONE,
    Code.REFUSED: Fault.REFUSED,
    Code.MALFORMED: Fault.MALFORMED,
    Code.BUSY: Fault.UNREACHABLE,
}


class _FaultyError(Exception):
    """What a donor said is not what it must say."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


class _BlamedError(Exception):
    """What went wrong has been said already; the connection is of no more use."""


@dataclass(frozen=True, kw_only=True)
class LaneSettings:
    """How a joiner talks. Times in seconds; limits of what a manifest may hold.

    `make` makes the line of a connection: a secured one where TLS is set.
    """

    token: bytes
    joiner: bytes
    limits: Limits
    max_manifest_bytes: int
    connect_s: float
    stall_s: float
    chunk_s: float
    ask_again_s: float
    make: LineMaker = Line


class Lane:
    """One connection to one donor at a time, until the fetch is over or the donor is out.

    The first lane of a donor also asks for the manifest, and tells the donor when all is done.
    """

    def __init__(self, gathering: Gathering, donor: str, settings: LaneSettings, *, first: bool) -> None:
        self._gathering = gathering
        self._donor = donor
        self._settings = settings
        self._first = first
        # A daemon: it may be in a look-up of a name, which nothing can end.
        threading.Thread(target=self._run, name=f"headway-joiner {donor}", daemon=True).start()

    def _run(self) -> None:
        while self._gathering.may_talk(self._donor, first=self._first):
            try:
                self._talk()
            except LineError as error:
                self._gathering.blame(self._donor, _FAULT_OF_ERROR[type(error)], str(error))
            except _FaultyError as faulty:
                self._gathering.blame(self._donor, faulty.fault, str(faulty))
            except _BlamedError:
                pass

    def _talk(self) -> None:
        settings = self._settings
        line = dial(
            self._donor,
            connect_s=settings.connect_s,
            stall_s=settings.stall_s,
            whole_s=settings.chunk_s,
            make=settings.make,
        )
        with self._registered(line):
            introduce(line, token=settings.token, joiner=settings.joiner)
            if self._first and not self._gathering.has_offer(self._donor):
                self._ask_manifest(line)
            # It ends when all is done, and when the donor's offer is gone: then it is asked anew.
            while (task := self._gathering.next_chunk(self._donor, line)) is not None:
                self._fetch(line, task)
            manifest = self._gathering.adopted
            if self._first and manifest is not None:
                line.send(Done(state_id=manifest.state_id))

    @contextlib.contextmanager
    def _registered(self, line: Line) -> Iterator[None]:
        self._gathering.enter(line)
        try:
            yield
        finally:
            self._gathering.leave(line)
            line.release()

    def _ask_manifest(self, line: Line) -> None:
        """Ask until the step is staged, or the fetch is over. Raises LineError or _FaultyError."""
        settings = self._settings
        while True:
            line.send(AskManifest(step=self._gathering.step))
            answer = line.receive(max_manifest_bytes=settings.max_manifest_bytes)
            if isinstance(answer, ManifestIs):
                self._offer(decode(answer.body, settings.limits))
                return
            if not isinstance(answer, Refusal):
                raise LineMalformedError(f"it answered {type(answer).__name__}")
            if answer.code is not Code.NOT_STAGED:
                raise _FaultyError(_FAULT_OF_CODE[answer.code], answer.detail)
            self._gathering.says(self._donor, answer.detail)
            if not self._gathering.pause(self._donor, settings.ask_again_s):
                return

    def _offer(self, manifest: Manifest | BadManifest) -> None:
        if isinstance(manifest, BadManifest):
            raise _FaultyError(Fault.MALFORMED, f"its manifest cannot be used: {manifest.reason}")
        if manifest.step != self._gathering.step:
            raise _FaultyError(
                Fault.WRONG_STEP, f"it offered step {manifest.step}, not {self._gathering.step}"
            )
        if (wrong := self._gathering.offer(self._donor, manifest)) is not None:
            raise _FaultyError(Fault.MISFIT, wrong)

    def _fetch(self, line: Line, task: Task) -> None:
        """Fetch one chunk; what went wrong with it is held against the donor by tensor."""
        arrived = False
        try:
            self._receive(line, task)
            arrived = True
        except (LineError, _FaultyError) as error:
            fault = error.fault if isinstance(error, _FaultyError) else _FAULT_OF_ERROR[type(error)]
            detail = str(error)
            if self._gathering.recalled(task):
                fault, detail = Fault.STALLED, "others were done long before it"
            tensor = task.manifest.layout.names_in(task.chunk)
            self._gathering.blame(self._donor, fault, detail, tensor)
            raise _BlamedError from None
        finally:
            if arrived:
                self._gathering.verified(task)
            else:
                self._gathering.failed(task)

    def _receive(self, line: Line, task: Task) -> None:
        line.send(AskChunk(state_id=task.manifest.state_id, chunk=task.chunk))
        answer = line.receive()
        if isinstance(answer, Refusal):
            raise _FaultyError(_FAULT_OF_CODE[answer.code], answer.detail)
        size = sum(len(part) for part in task.parts)
        if answer != ChunkIs(chunk=task.chunk, nbytes=size):
            raise LineMalformedError(f"it answered {type(answer).__name__}, not the chunk")
        line.receive_into(task.parts)
        if checksum(task) != task.manifest.digests[task.chunk]:
            raise _FaultyError(Fault.WRONG_BYTES, f"chunk {task.chunk} is not what its checksum says")


def checksum(task: Task) -> bytes:
    """xxh3_64 over the bytes that arrived (8 bytes)."""
    hasher = xxhash.xxh3_64()
    for part in task.parts:
        hasher.update(part)
    return hasher.digest()
