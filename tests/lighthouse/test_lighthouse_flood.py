"""A real server under bad company: invented names, malformed messages, random frames on its ports."""

import asyncio
import os
import pickle
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from serving import heartbeat
from test_lighthouse_attach import hello
from test_lighthouse_process import Server, quorum

from lighthouse.client import AttachStream, status
from protos import lighthouse_pb2 as pb
from protos import torchft_pb2

OURS = "/headway.lighthouse.v1.LighthouseService/"
TORCHFT = "/torchft.LighthouseService/"
UNARY = [TORCHFT + "Quorum", TORCHFT + "Heartbeat"]
UNARY += [OURS + name for name in ("Leave", "Status", "Evict", "Drain", "Forget")]
STREAMS = [OURS + name for name in ("Attach", "Watch", "WatchEvents")]
NAMES = 10_000
AT_ONCE = 200
# None of them in the job of the group that is asked about: whoever beats there counts as healthy.
KINDS = ("invented{0}", "other/1{0}:x", "other/7:y{0}", "job{0}/0:z")


@pytest.fixture
def server() -> Iterator[Server]:
    ports = ("--bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0")
    running = Server(*ports, "--state-dir", "none", "--join-timeout-ms", "1000")
    yield running
    running.process.kill()
    running.process.communicate()


def rss_mb(server: Server) -> float:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


async def beat_all(address: str, names: list[str]) -> list[grpc.StatusCode]:
    """A heartbeat and a short request for a quorum under each name."""
    codes: list[grpc.StatusCode] = []
    async with grpc.aio.insecure_channel(address) as channel:
        beat, ask = (channel.unary_unary(method) for method in UNARY[:2][::-1])
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            calls = [beat(heartbeat(name), timeout=20.0) for name in some]
            codes += await asyncio.gather(*(call.code() for call in calls))
            member = torchft_pb2.QuorumMember(replica_id=some[0])
            request = torchft_pb2.LighthouseQuorumRequest(requester=member).SerializeToString()
            await ask(request, timeout=0.01).code()
    return codes


def test_ten_thousand_invented_names_leave_the_memory_flat(server: Server) -> None:
    with AttachStream(server.address, hello()) as stream, grpc.insecure_channel(server.address) as channel:
        stream.open(10)
        sizes_mb = []
        for turn in range(5):
            numbers = range(turn * NAMES // 5, (turn + 1) * NAMES // 5)
            names = [KINDS[number % len(KINDS)].format(number) for number in numbers]
            codes = asyncio.run(beat_all(server.address, names))
            assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
            sizes_mb.append(rss_mb(server))
        assert sizes_mb[-1] - sizes_mb[1] < 8, sizes_mb
        assert quorum(channel, "job/0:a", timeout_s=20.0).result().quorum.quorum_id > 0
        assert stream.goodbye(finished=False, step=0)


def noise(source: random.Random) -> bytes:
    """Bytes that no proper client would send."""
    return source.randbytes(source.choice((0, 1, 9, 100, 5000)))


def test_malformed_messages_are_an_error_for_their_sender_alone(server: Server) -> None:
    source = random.Random(1)
    with AttachStream(server.address, hello()) as stream, grpc.insecure_channel(server.address) as channel:
        stream.open(10)
        for method in UNARY:
            for _ in range(20):
                call = channel.unary_unary(method).future(noise(source), timeout=0.5)
                assert call.code() is not grpc.StatusCode.UNKNOWN, (method, call.details())
        for method in STREAMS:
            for _ in range(5):
                words = [noise(source) for _ in range(3)]
                stream_call = channel.stream_stream(method)(iter(words), timeout=0.5)
                assert stream_call.code() is not grpc.StatusCode.UNKNOWN, (method, stream_call.details())
        answer = quorum(channel, "job/0:a", timeout_s=20.0).result()
        assert "job/0:a" in [member.replica_id for member in answer.quorum.participants]
        assert stream.goodbye(finished=False, step=0)


def frames(source: random.Random) -> bytes:
    """An HTTP/2 preface and random frames, or no HTTP/2 at all."""
    kind = source.randrange(4)
    if kind == 0:
        return noise(source)
    if kind == 1:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + noise(source)
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for _ in range(source.randrange(1, 6)):
        body = source.randbytes(source.choice((0, 4, 8, 300)))
        length = len(body) if kind == 2 else source.randrange(2**24)
        sent += (
            length.to_bytes(3, "big")
            + source.randbytes(2)
            + source.randrange(2**31).to_bytes(4, "big")
            + body
        )
    return sent


def test_random_frames_on_either_port_hurt_nobody(server: Server) -> None:
    source = random.Random(2)
    status_port = int(server.status_url.rpartition(":")[2])
    with AttachStream(server.address, hello()) as stream:
        stream.open(10)
        left_open: list[socket.socket] = []
        for number in range(120):
            port = status_port if number % 4 == 0 else server.port
            peer = socket.create_connection(("127.0.0.1", port), timeout=5.0)
            with suppress(OSError):  # it may have been hung up on already
                peer.sendall(frames(source))
            if number % 10 == 0:
                left_open.append(peer)
            else:
                peer.close()
        (group,) = status(server.address)["jobs"][0]["groups"]
        assert (group["attached"], group["state"]) == (True, "joining")
        with grpc.insecure_channel(server.address) as channel:
            assert quorum(channel, "job/0:a", timeout_s=20.0).result().quorum.quorum_id > 0
        assert stream.goodbye(finished=False, step=0)
        for peer in left_open:
            peer.close()


class Planted:
    """Leaves a file behind where anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_planted_pickle_runs_nothing(server: Server, tmp_path: Path) -> None:
    planted = pickle.dumps(Planted(tmp_path / "ran"))
    with grpc.insecure_channel(server.address) as channel:
        for method in UNARY:
            channel.unary_unary(method).future(planted, timeout=0.5).code()
        for method in STREAMS:
            channel.stream_stream(method)(iter([planted]), timeout=0.5).code()
    for port in (server.port, int(server.status_url.rpartition(":")[2])):
        for head in (b"", b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(planted)):
            with socket.create_connection(("127.0.0.1", port), timeout=5.0) as peer, suppress(OSError):
                peer.sendall(head + planted)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(4096)
    assert not (tmp_path / "ran").exists()
    pickle.loads(planted)
    assert (tmp_path / "ran").exists(), "it would have run"


def test_calls_for_jobs_that_nobody_knows_make_none(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for method, request in (
            ("Evict", pb.EvictRequest(job="none", group=1)),
            ("Drain", pb.DrainRequest(job="none", group=1)),
            ("Leave", pb.LeaveRequest(replica_id="none/0:a")),
            ("Forget", pb.ForgetRequest(job="none")),
        ):
            reply = channel.unary_unary(OURS + method)(request.SerializeToString(), timeout=5.0)
            assert not pb.EvictResponse.FromString(reply).known
    assert status(server.address)["jobs"] == []


def http2_frame(kind: int, body: bytes = b"", flags: int = 0) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + bytes(4) + body


def read_exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        assert more, "the server has hung up"
        data += more
    return data


def test_pings_of_an_idle_client_are_answered_for_ever(server: Server) -> None:
    """A client that waits pings every minute. By default gRPC hangs up on it at the third ping."""
    pings, goaway, answered = 6, 7, 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as peer:
        peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4))
        peer.sendall(b"".join(http2_frame(pings, bytes(8)) for _ in range(50)))
        while answered < 50:
            head = read_exactly(peer, 9)
            read_exactly(peer, int.from_bytes(head[:3], "big"))
            assert head[3] != goaway
            answered += head[3] == pings and head[4] == 1
