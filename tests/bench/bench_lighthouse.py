"""Our Lighthouse beside torchft's own, in one run: quorum calls, heartbeats, many groups.

    python tests/bench/bench_lighthouse.py [SECONDS_PER_FIGURE]

Both are child processes and are asked by the same Python client, whose own time is in all figures.
Lock-step: all groups ask at once, and again when all have their answer. CPU: share of one core that
the server uses.
"""

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import grpc

from protos import lighthouse_pb2 as pb
from protos import torchft_pb2

KINDS = ("headway", "torchft")
LOCK_STEP_GROUPS = (2, 8, 32, 128)
BEATING_GROUPS = (128, 512)
STEPPING_GROUPS = (64, 128, 256)
BEAT_INTERVAL_S = 0.1
CHANNELS = 8

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Server:
    """A Lighthouse of either kind, as a child process."""

    def __init__(self, kind: str, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.kind = kind
        self.process = process
        self.address = f"127.0.0.1:{port}"

    def cpu_s(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextmanager
def serving(kind: str, groups: int) -> Iterator[Server]:
    """A fresh server that waits for so many groups, without its log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    limits = ["--min_replicas", str(groups), "--quorum_tick_ms", "100", "--join_timeout_ms", "60000"]
    if kind == "headway":
        command = [sys.executable, "-m", "lighthouse", "serve", "--http-bind", "none", "--state-dir", "none"]
    else:
        command = [str(Path(sys.executable).with_name("torchft_lighthouse"))]
    command += ["--bind", f"127.0.0.1:{port}", *limits]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, "RUST_LOG": "off"}, **silent)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=30)
        yield Server(kind, process, port)
    finally:
        process.kill()
        process.wait()


class Groups:
    """Many simulated groups in this process, on a few connections."""

    def __init__(self, server: Server, count: int) -> None:
        self.count = count
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(server.address, options) for _ in range(CHANNELS)]
        self._asks = [channel.unary_unary("/torchft.LighthouseService/Quorum") for channel in self._channels]
        self._beats = [
            channel.unary_unary("/torchft.LighthouseService/Heartbeat") for channel in self._channels
        ]
        self._names = [f"bench/{group}:uuid" for group in range(count)]
        self._beat_messages = [
            torchft_pb2.LighthouseHeartbeatRequest(replica_id=name).SerializeToString()
            for name in self._names
        ]
        self.took_s: list[float] = []

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def ask(self, group: int, step: int) -> None:
        """One call for a quorum; its time is kept."""
        member = torchft_pb2.QuorumMember(
            replica_id=self._names[group],
            address="http://host:1234",
            store_address="host:1235/store",
            step=step,
            world_size=8,
        )
        request = torchft_pb2.LighthouseQuorumRequest(requester=member).SerializeToString()
        started_s = time.perf_counter()
        await self._asks[group % CHANNELS](request, timeout=60.0)
        self.took_s.append(time.perf_counter() - started_s)

    async def step(self, step: int) -> None:
        """All ask at once."""
        await asyncio.gather(*(self.ask(group, step) for group in range(self.count)))

    async def beat(self, group: int) -> None:
        await self._beats[group % CHANNELS](self._beat_messages[group], timeout=10.0)

    async def beat_for(self, group: int, interval_s: float, duration_s: float) -> None:
        """Beat at an even pace, from a phase of its own."""
        end_s = time.monotonic() + duration_s
        await asyncio.sleep(interval_s * group / self.count)
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            await self.beat(group)
            await asyncio.sleep(max(0.0, interval_s - (time.monotonic() - began_s)))

    async def attach(self, group: int) -> Any:
        """Open the group's stream."""
        method = self._channels[group % CHANNELS].stream_stream(
            "/headway.lighthouse.v1.LighthouseService/Attach",
            request_serializer=pb.AttachRequest.SerializeToString,
        )
        call = method()
        hello = pb.Hello(job="bench", group=group, replica_id=self._names[group], group_world_size=8)
        await call.write(pb.AttachRequest(hello=hello))
        await call.read()
        return call


def spread_ms(took_s: list[float]) -> str:
    """The median and the 99th percentile."""
    cuts = quantiles(took_s, n=100)
    return f"p50 {cuts[49] * 1e3:7.2f} ms   p99 {cuts[98] * 1e3:7.2f} ms"


async def lock_step(server: Server, count: int, duration_s: float) -> str:
    """Quorum calls of groups that do nothing else."""
    groups = Groups(server, count)
    for step in range(5):
        await groups.step(step)
    groups.took_s.clear()
    end_s = time.monotonic() + duration_s
    for step in itertools.count(5):
        if time.monotonic() > end_s:
            break
        await groups.step(step)
    await groups.close()
    return spread_ms(groups.took_s)


async def beating(server: Server, count: int, duration_s: float) -> str:
    """Heartbeats alone."""
    groups = Groups(server, count)
    await asyncio.gather(*(groups.beat(group) for group in range(count)))
    before_s, began_s = server.cpu_s(), time.monotonic()
    beats = (groups.beat_for(group, BEAT_INTERVAL_S, duration_s) for group in range(count))
    await asyncio.gather(*beats)
    share = (server.cpu_s() - before_s) / (time.monotonic() - began_s)
    await groups.close()
    return f"CPU {share * 100:5.1f} % of a core"


async def stepping(server: Server, count: int, duration_s: float) -> str:
    """Groups that beat, and take a step, once a second; on ours with streams, pulses and progress."""
    groups = Groups(server, count)
    attached = server.kind == "headway"
    streams = await asyncio.gather(*(groups.attach(group) for group in range(count))) if attached else []
    await groups.step(0)
    groups.took_s.clear()
    before_s, began_s = server.cpu_s(), time.monotonic()
    beats = [asyncio.create_task(groups.beat_for(group, 1.0, duration_s)) for group in range(count)]
    for step in range(1, max(2, round(duration_s))):
        for phase in (pb.PHASE_COMPUTE, pb.PHASE_REDUCE):
            await _say(streams, pb.AttachRequest(progress=pb.Progress(step=step, phase=phase)))
        await _say(streams, pb.AttachRequest(pulse=pb.Pulse()))
        await groups.step(step)
        await asyncio.sleep(max(0.0, began_s + step - time.monotonic()))
    await asyncio.gather(*beats)
    share = (server.cpu_s() - before_s) / (time.monotonic() - began_s)
    for stream in streams:
        stream.cancel()
    await groups.close()
    return f"CPU {share * 100:5.1f} % of a core   {spread_ms(groups.took_s)}"


async def _say(streams: list[Any], word: pb.AttachRequest) -> None:
    await asyncio.gather(*(stream.write(word) for stream in streams))


FIGURES = (
    ("quorum in lock-step, {} groups", LOCK_STEP_GROUPS, lock_step),
    ("{} groups that beat every 100 ms", BEATING_GROUPS, beating),
    ("{} groups that beat and step each second", STEPPING_GROUPS, stepping),
)


def main(duration_s: float) -> None:
    """Print one line for each figure and each kind of Lighthouse."""
    for title, sizes, measure in FIGURES:
        for count in sizes:
            print(title.format(count), flush=True)
            for kind in KINDS:
                needed = count if measure is not beating else 1
                with serving(kind, needed) as server:
                    print(f"  {kind:8} {asyncio.run(measure(server, count, duration_s))}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
