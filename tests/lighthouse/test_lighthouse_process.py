"""`python -m lighthouse serve` as a real process: its first line, its signals, its restarts."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from test_lighthouse_attach import hello

from lighthouse.address import own_hostname
from lighthouse.client import AttachStream, status
from protos import torchft_pb2

FIRST_LINE = re.compile(r"lighthouse listening on http://(\S+):(\d+), status on (http://\S+:\d+)\n")


class Server:
    """A child process that serves."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "lighthouse", "serve", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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


def test_trouble_is_one_sentence_and_exit_code_4(servers: Any, tmp_path: Path) -> None:
    server = servers(state="state")
    free = ("--bind", "127.0.0.1:0")
    assert "the port is in use" in refused("--bind", server.address, "--state-dir", "none")
    assert "in use by another Lighthouse" in refused(*free, "--state-dir", str(tmp_path / "state"))
