"""The live state from donor to joiner: ours beside torchft's HTTP transport and beside bare sockets.

    python tests/bench/bench_transfer.py [MEGABYTES] [ROUNDS]

Two donors in processes of their own hold a state of float32 tensors, 1000 MB by default; this process
reads it over loopback, one contender after the other, round after round. Printed are medians: GB/s,
CPU seconds that donor and joiner spent per GB, and the memory that each needed beyond its own state.
The state must not be smaller than a few hundred MB for the memory to mean much.
"""

import ctypes
import gc
import multiprocessing
import socket
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torchft.checkpointing.http_transport import HTTPTransport

from replica.transfer import Donor, DonorSettings, Fetched, fetch

STEP = 7
TENSORS = 40
TORCHFT_CHUNKS = (0, 1, 2, 4, 8, 10)  # 0: its single stream
TIMEOUT = timedelta(seconds=120)
PIECE = 8 << 20


@dataclass(kw_only=True)
class Contender:
    """One way to move the state: `move` returns what arrived."""

    name: str
    move: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    joiner_extra: list[int] = field(default_factory=list)
    donor_extra: list[int] = field(default_factory=list)

    def rate(self, nbytes: int) -> float:
        """The median of GB/s."""
        return nbytes / statistics.median(self.seconds) / 1e9


def state_of(megabytes: int, value: float) -> dict[str, torch.Tensor]:
    """Tensors of this many MB together."""
    return {f"weight.{i}": torch.full((megabytes * 250_000 // TENSORS,), value + i) for i in range(TENSORS)}


def memory(key: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def reset_peak() -> int:
    """Let VmHWM begin again from now; returns the bytes in use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or the allocator would hide what the next contender needs
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def serve_bare(listener: socket.socket, data: memoryview) -> None:
    """Send to each connection the part of `data` that its first 16 bytes name."""

    def send(connection: socket.socket) -> None:
        with connection:
            start, stop = (int.from_bytes(connection.recv(8, socket.MSG_WAITALL)) for _ in range(2))
            for at in range(start, stop, PIECE):
                connection.sendall(data[at : min(at + PIECE, stop)])

    while True:
        threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()


def donor_process(megabytes: int, pipe: Connection) -> None:
    """Hold a state and serve it in every way, until told to end."""
    torch.set_num_threads(1)
    state = state_of(megabytes, 1.0)
    settings = DonorSettings(hold_s=3600.0)
    with ExitStack() as stack:
        donor = stack.enter_context(Donor(bind="127.0.0.1", settings=settings))
        before, started = reset_peak(), time.monotonic()
        donor.stage(STEP, state, joiners=10**6)
        stage_s = time.monotonic() - started
        staged_bytes = memory("VmHWM") - before
        listener = socket.create_server(("127.0.0.1", 0))
        bare = torch.cat(list(state.values())).view(torch.uint8)
        threading.Thread(target=serve_bare, args=(listener, memoryview(bare.numpy())), daemon=True).start()
        urls = {chunks: serve_torchft(state, chunks) for chunks in TORCHFT_CHUNKS}
        pipe.send((donor.address, listener.getsockname(), urls, stage_s, staged_bytes))
        answers = {"cpu": time.process_time, "reset": reset_peak, "peak": lambda: memory("VmHWM")}
        while (word := pipe.recv()) != "end":
            pipe.send(answers[word]())


def serve_torchft(state: dict[str, torch.Tensor], chunks: int) -> str:
    """The address of a transport of torchft's that serves the state; it lasts as long as the process."""
    transport: HTTPTransport[Any] = HTTPTransport(timeout=TIMEOUT, num_chunks=chunks)
    transport._server.RequestHandlerClass.log_message = lambda *arguments: None
    transport.send_checkpoint([1], STEP, state, TIMEOUT)
    return f"http://127.0.0.1:{transport.address().rsplit(':', 1)[1]}"


def read_bare(address: tuple[str, int], into: memoryview, connections: int) -> memoryview:
    """Read all bytes over so many connections, without checking anything."""

    def read(start: int, stop: int) -> None:
        with socket.create_connection(address) as connection:
            connection.sendall(start.to_bytes(8) + stop.to_bytes(8))
            while start < stop:
                start += connection.recv_into(into[start:stop])

    share = -(-len(into) // connections)
    readers = [
        threading.Thread(target=read, args=(at, min(at + share, len(into))))
        for at in range(0, len(into), share)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return into


def read_ours(donors: list[str], own: dict[str, torch.Tensor], *, fresh: bool) -> Fetched:
    """Read with checksums, in place or into a second buffer."""
    result = fetch(donors, step=STEP, expected=own, fresh=fresh, timeout_s=120)
    assert isinstance(result, Fetched), result.sentence
    return result


def contenders(own: dict[str, torch.Tensor], facts: list[Any]) -> list[Contender]:
    """All ways to move the state, in the order in which they take turns."""
    addresses = [fact[0] for fact in facts]
    _, bare, urls, _, _ = facts[0]
    into = memoryview(torch.ones(sum(t.nbytes for t in own.values()), dtype=torch.uint8).numpy())
    found = [
        Contender(name=f"bare sockets, {count}", move=lambda count=count: read_bare(bare, into, count))
        for count in (1, 2)
    ]
    for chunks, url in urls.items():
        transport: HTTPTransport[Any] = HTTPTransport(timeout=TIMEOUT, num_chunks=chunks)
        found.append(
            Contender(
                name=f"torchft, {chunks} chunks" if chunks else "torchft, single stream",
                move=lambda t=transport, u=url: t.recv_checkpoint(0, u, STEP, TIMEOUT),
            )
        )
    for count, fresh in ((1, True), (2, True), (1, False), (2, False)):
        name = f"ours, {count} donor{'s'[: count - 1]}, {'fresh' if fresh else 'second buffer'}"
        found.append(
            Contender(name=name, move=lambda n=count, f=fresh: read_ours(addresses[:n], own, fresh=f))
        )
    return found


def run_once(contender: Contender, pipes: list[Connection]) -> None:
    """Move the state once and write down what it took."""

    def ask(word: str) -> list[Any]:
        for pipe in pipes:
            pipe.send(word)
        return [pipe.recv() for pipe in pipes]

    donor_before, before = ask("reset")[0], reset_peak()
    cpu_before, started = sum(ask("cpu")) + time.process_time(), time.monotonic()
    arrived = contender.move()
    contender.seconds.append(time.monotonic() - started)
    contender.cpu_s.append(sum(ask("cpu")) + time.process_time() - cpu_before)
    contender.joiner_extra.append(memory("VmHWM") - before)
    contender.donor_extra.append(ask("peak")[0] - donor_before)
    del arrived


def print_table(entries: list[Contender], nbytes: int) -> None:
    """A line for each contender, and the ratios."""
    for entry in entries:
        cpu = statistics.median(entry.cpu_s) / nbytes * 1e9
        joiner, donor = (statistics.median(x) / nbytes for x in (entry.joiner_extra, entry.donor_extra))
        print(
            f"{entry.name:32} {entry.rate(nbytes):5.2f} GB/s, CPU {cpu:5.2f} s/GB, "
            f"extra memory in states: joiner {joiner:5.2f}, donor {donor:5.2f}"
        )
    rates = {entry.name: entry.rate(nbytes) for entry in entries}
    peer = max(rate for name, rate in rates.items() if name.startswith("torchft"))
    bare = max(rate for name, rate in rates.items() if name.startswith("bare"))
    for name, rate in rates.items():
        if name.startswith("ours"):
            print(f"{name:32} {rate / peer:5.2f} times torchft's best, {rate / bare:5.2f} of bare sockets")


def main() -> None:
    """Measure all contenders in turn and print a line for each."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torchft's own, about what it uses of torch
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(2):
        mine, theirs = context.Pipe()
        children.append(context.Process(target=donor_process, args=(megabytes, theirs), daemon=True))
        children[-1].start()
        pipes.append(mine)
    facts = [pipe.recv() for pipe in pipes]
    own = state_of(megabytes, 0.0)
    nbytes = sum(tensor.nbytes for tensor in own.values())
    entries = contenders(own, facts)
    for _ in range(rounds):
        for entry in entries:
            run_once(entry, pipes)
    print(f"a state of {nbytes / 1e6:.0f} MB, medians of {rounds} rounds")
    print_table(entries, nbytes)
    print(
        f"the donor copied its state in {facts[0][3]:.2f} s, extra memory {facts[0][4] / nbytes:.2f} states"
    )
    for pipe, child in zip(pipes, children, strict=True):
        pipe.send("end")
        child.join()


if __name__ == "__main__":
    main()
