"""`python -m lighthouse serve` as a real process: its first line, its signals, its restarts."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from test_lighthouse_attach import Heard, hello

from lighthouse.address import own_hostname
from lighthouse.client import AttachStream, NoticeKind, status
from protos import torchft_pb2

FIRST_LINE = re.compile(r"lighthouse listening on http://(\S+):(\d+), status on (http://\S+:\d+)\n")


class Server:
    """A child process that serves."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "lighthouse", "serve", *flags]
        # Its log goes where the test's own output goes: nobody would read a pipe.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        match = FIRST_LINE.fullmatch(self.first_line)
        assert match is not None, self.first_line
        self.host, self.port, self.status_url = match[1], int(match[2]), match[3]
        self.address = f"127.0.0.1:{self.port}"

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self, number: signal.Signals) -> int:
        """Send the signal and return the exit code."""
        self.send(number)
        self.process.communicate(timeout=10)
        return self.process.returncode


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Any]:
    running: list[Server] = []

    def start(*flags: str, state: str = "none") -> Server:
        where = state if state == "none" else str(tmp_path / state)
        ports = ("--bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0")
        running.append(Server(*ports, "--state-dir", where, *flags))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def quorum(channel: grpc.Channel, name: str, step: int = 0, timeout_s: float = 20.0) -> Any:
    """A call for a quorum, as a future."""
    call = channel.unary_unary(
        "/torchft.LighthouseService/Quorum",
        request_serializer=torchft_pb2.LighthouseQuorumRequest.SerializeToString,
        response_deserializer=torchft_pb2.LighthouseQuorumResponse.FromString,
    )
    member = torchft_pb2.QuorumMember(replica_id=name, step=step)
    request = torchft_pb2.LighthouseQuorumRequest(requester=member)
    return call.future(request, timeout=timeout_s, wait_for_ready=True)


def refused(*flags: str) -> str:
    """Standard error of a server that ends at once with exit code 4."""
    command = [sys.executable, "-m", "lighthouse", "serve", "--http-bind", "none", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("lighthouse: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_while_calls_wait(servers: Any, number: signal.Signals) -> None:
    server = servers("--bind", "[::]:0", "--min-replicas", "2")
    assert server.host == own_hostname()
    with grpc.insecure_channel(server.address) as channel, AttachStream(server.address, hello()) as stream:
        stream.open(10)
        waiting = quorum(channel, "job/0:a")
        while not status(server.address)["jobs"][0]["forming"]["asking"]:
            pass
        with urlopen(server.status_url + "/status.json") as answer:
            assert json.load(answer)["jobs"][0]["forming"]["reason"] == "min_replicas"
        started_s = time.monotonic()
        assert server.end(number) == 0
        assert time.monotonic() - started_s < 2.0
        assert waiting.code() is grpc.StatusCode.UNAVAILABLE


def test_ids_rise_across_sigkill_on_the_same_port_and_directory(servers: Any) -> None:
    first = servers(state="state")
    with grpc.insecure_channel(first.address) as channel:
        quorum(channel, "job/0:a").result()
        before = quorum(channel, "job/0:a", step=3).result()
        pool = quorum(channel, "ddp_0:a").result()
    first.end(signal.SIGKILL)
    second = servers("--bind", first.address, state="state")
    with grpc.insecure_channel(second.address) as channel:
        after = quorum(channel, "job/0:a", step=4).result()
        pool_after = quorum(channel, "ddp_0:a").result()
    assert after.quorum.quorum_id > before.quorum.quorum_id
    assert pool_after.quorum.quorum_id > pool.quorum.quorum_id
    with AttachStream(second.address, hello(group=1)) as stream:
        welcome = stream.open(10)
    assert welcome is not None
    assert (welcome.start_mode.name, welcome.step) == ("HEAL", 4)


def test_ids_rise_across_restarts_without_a_directory_too(servers: Any) -> None:
    ids = []
    for _ in range(2):
        server = servers()
        with grpc.insecure_channel(server.address) as channel:
            ids.append(quorum(channel, "job/0:a").result().quorum.quorum_id)
        server.end(signal.SIGKILL)
    assert ids[0] < ids[1] < 2**63


def test_a_stopped_server_does_not_blame_its_clients(servers: Any) -> None:
    server = servers("--heartbeat-timeout-ms", "2000", "--expected-groups", "2")
    with grpc.insecure_channel(server.address) as channel:
        both = [quorum(channel, name) for name in ("job/0:a", "job/1:a")]
        members = [[m.replica_id for m in call.result().quorum.participants] for call in both]
        assert members == [["job/0:a", "job/1:a"]] * 2
        server.send(signal.SIGSTOP)
        time.sleep(3.0)  # the length of the stop is what is tested
        server.send(signal.SIGCONT)
        groups = status(server.address)["jobs"][0]["groups"]
    assert [group["state"] for group in groups] == ["training", "training"]
    assert all(group["last_heard_s"] < 2.0 for group in groups)


RANK = """
import sys, time
from lighthouse.client import AttachStream, Hello, WatchStream
rank = int(sys.argv[2])
hello = Hello(job="job", group=1, replica_id="job/1:a", group_world_size=2, group_rank=rank)
stream = (WatchStream if rank else AttachStream)(sys.argv[1], hello)
stream.open(20)
print("open", flush=True)
time.sleep(600)
"""


@contextmanager
def rank_of_group_1(address: str, rank: int) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the stream of this rank."""
    command = [sys.executable, "-c", RANK, address, str(rank)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def both_ask(address: str) -> int:
    """Groups 0 and 1 get a quorum; its id."""
    with grpc.insecure_channel(address) as channel:
        calls = [quorum(channel, f"job/{group}:a") for group in (0, 1)]
        (number,) = {call.result().quorum.quorum_id for call in calls}
        return int(number)


@pytest.mark.parametrize("rank", [0, 1])
def test_sigkill_of_any_rank_is_told_at_once(servers: Any, rank: int) -> None:
    server, heard = servers("--expected-groups", "2"), Heard()
    with (
        AttachStream(server.address, hello(), heard) as stream,
        rank_of_group_1(server.address, 0) as first,
        rank_of_group_1(server.address, 1) as second,
    ):
        stream.open(10)
        quorum_id = both_ask(server.address)
        killed_s = time.monotonic()
        (first, second)[rank].kill()
        notice = heard.wait_for(NoticeKind.ATTEMPT_OVER)
        assert time.monotonic() - killed_s < 1.0
        assert (notice.quorum_id, notice.cause) == (quorum_id, f"group 1: rank {rank} died")
        stream.goodbye(finished=False, step=0)


def test_sigstop_of_one_rank_evicts_its_group(servers: Any) -> None:
    server, heard = servers("--expected-groups", "2", "--heartbeat-timeout-ms", "3000"), Heard()
    with (
        AttachStream(server.address, hello(), heard) as stream,
        rank_of_group_1(server.address, 0) as first,
        rank_of_group_1(server.address, 1) as second,
        grpc.insecure_channel(server.address) as channel,
    ):
        stream.open(10)
        both_ask(server.address)
        second.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        while not heard.notices:
            for group in (0, 1):  # rank 0's native thread goes on beating
                beat(channel, f"job/{group}:a")
        assert 1.5 < time.monotonic() - stopped_s < 6.0
        assert heard.wait()[0].cause.startswith("group 1: rank 1 has said nothing for ")
        (_, group_1) = status(server.address)["jobs"][0]["groups"]
        assert group_1["state"] == "evicted"
        assert first.poll() is None
        stream.goodbye(finished=False, step=0)


def beat(channel: grpc.Channel, name: str) -> None:
    call = channel.unary_unary("/torchft.LighthouseService/Heartbeat")
    request = torchft_pb2.LighthouseHeartbeatRequest(replica_id=name).SerializeToString()
    call.future(request, timeout=5.0).code()  # one that was counted out is refused
    time.sleep(0.05)


def test_trouble_is_one_sentence_and_exit_code_4(servers: Any, tmp_path: Path) -> None:
    server = servers(state="state")
    free = ("--bind", "127.0.0.1:0")
    assert "the port is in use" in refused("--bind", server.address, "--state-dir", "none")
    assert "in use by another Lighthouse" in refused(*free, "--state-dir", str(tmp_path / "state"))
