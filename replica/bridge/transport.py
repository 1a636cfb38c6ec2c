"""How a joiner gets the live state: torchft's HTTP transport, made safe for donor and joiner."""

import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import torch
from torch.distributed._serialization import _streaming_load
from torchft.checkpointing.http_transport import HTTPTransport

from replica.bridge.interrupts import Interrupts, Undisturbed, wait_for

RETRY_INTERVAL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One answer of a donor: how many bytes went to a joiner, of which step, in what time."""

    step: int
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Received:
    """One completed fetch of a joiner, from the member with this rank in the quorum."""

    donor_rank: int
    step: int
    seconds: float


class HealTransport(HTTPTransport[Any]):  # type: ignore[misc]
    """torchft's HTTP transport with an advertised address, retries, and a donor that never waits.

    `on_sent` is called on a server thread after each answer, `on_fetch` when a heal begins. What is
    staged must be a copy: the donor trains on while joiners read it. A donor keeps one copy, until
    the next replaces it or `release` finds it older than the transfer timeout.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        advertise_addr: str,
        on_sent: Callable[[Sent], None],
        on_fetch: Callable[[], None] = lambda: None,
        interrupts: Interrupts | None = None,
        quorum_id: Callable[[], int] = lambda: -1,
    ) -> None:
        self._advertise_addr = advertise_addr
        self._interrupts: Interrupts = interrupts or Undisturbed()
        self._quorum_id = quorum_id
        self._on_fetch = on_fetch
        self._staged_at_s = 0.0
        self._state_dict: Any = None
        self.received: Received | None = None
        super().__init__(timeout=timedelta(seconds=timeout_s), num_chunks=0)
        self._server.RequestHandlerClass = _counting(self._server.RequestHandlerClass, on_sent)
        # A joiner that dies while it reads is expected; the default prints a traceback.
        self._server.handle_error = lambda request, client_address: None

    def address(self) -> str:
        """URL prefix that joiners fetch from; the step is appended."""
        host = f"[{self._advertise_addr}]" if ":" in self._advertise_addr else self._advertise_addr
        return f"http://{host}:{self._server.socket.getsockname()[1]}/checkpoint/"

    def disallow_checkpoint(self) -> None:
        """Nothing to do: torchft would wait here for slow joiners, and what is served is a copy."""

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:
        """Stage a copy of the state for joiners to fetch. Does not wait for them."""
        self._staged_at_s = time.monotonic()
        super().send_checkpoint(dst_ranks, step, state_dict, timeout)

    def release(self) -> None:
        """Free the staged copy once no joiner can still want it."""
        if (
            self._state_dict is not None
            and time.monotonic() - self._staged_at_s > self._timeout.total_seconds()
        ):
            self._step, self._state_dict, self._chunks, self._spec = -1, None, None, None

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """Fetch the state of `step`; asks again while the donor has not staged it yet.

        Blocks at most `timeout`, and only while the attempt is not over: the fetch runs on a helper
        thread, which is left behind then. Raises TimeoutError, AttemptOverError, or OSError when
        the donor is gone.
        """
        started = time.monotonic()
        self._on_fetch()
        outcome: list[Any] = []
        ready = threading.Event()

        def fetch() -> None:
            try:
                outcome.append(self._fetch(src_rank, metadata, step, timeout))
            except Exception as error:
                outcome.append(error)
            ready.set()

        threading.Thread(target=fetch, name="headway-heal", daemon=True).start()
        failure = wait_for(
            lambda: bool(outcome),
            ready,
            what=f"the state of step {step} from {metadata}",
            timeout_s=timeout.total_seconds(),
            interrupts=self._interrupts,
            quorum_id=self._quorum_id(),
        )
        if failure is not None:
            raise failure
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        self.received = Received(donor_rank=src_rank, step=step, seconds=time.monotonic() - started)
        return outcome[0]

    def _fetch(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            try:
                return super().recv_checkpoint(src_rank, metadata, step, timeout)
            except urllib.error.HTTPError as refusal:
                refusal.close()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{metadata} did not stage step {step} in time") from refusal
            time.sleep(RETRY_INTERVAL_S)

    @classmethod
    def _load_from_address(cls, address: str, timeout: timedelta) -> object:
        """Read one answer; only tensors and plain containers are accepted, nothing is run."""
        with (
            urllib.request.urlopen(address, timeout=timeout.total_seconds()) as answer,
            warnings.catch_warnings(),
        ):
            # torch reads each tensor into immutable bytes; the tensors are only copied from.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return _streaming_load(answer, weights_only=True)


def _counting(handler: Any, on_sent: Callable[[Sent], None]) -> Any:
    """A request handler that reports how many bytes of the state each answer took."""

    class CountingHandler(handler):  # type: ignore[misc]
        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def send_response(self, code: int, message: str | None = None) -> None:
            self.last_code = code
            super().send_response(code, message)

        def do_GET(self) -> None:  # noqa: N802, http.server's name
            writer = _CountingWriter(self.wfile)
            self.wfile: Any = writer
            started = time.monotonic()
            super().do_GET()
            if self.last_code == HTTPStatus.OK and not writer.failed:
                step = int(self.path.split("/")[2])
                on_sent(Sent(step=step, bytes=writer.bytes, seconds=time.monotonic() - started))

    return CountingHandler


class _CountingWriter:
    """A writable stream that counts what went through and remembers a failure."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.bytes = 0
        self.failed = False

    def write(self, data: Any) -> int:
        try:
            self._stream.write(data)
        except OSError:
            self.failed = True
            raise
        size = memoryview(data).nbytes
        self.bytes += size
        return size

    def flush(self) -> None:
        self._stream.flush()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        self._stream.close()


def tensor_bytes(state: dict[str, torch.Tensor]) -> int:
    """Bytes of all tensors of a state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
