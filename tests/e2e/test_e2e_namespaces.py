"""Groups that share nothing but a network: each in a network namespace of its own, with its own address."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]
BRIDGE, NETWORK = "hwbr0", "10.213.7"
PACED_TRAINER = Path(__file__).with_name("paced_trainer.py")
ENDLESS = 100_000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def can_make_namespaces() -> bool:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    made = subprocess.run(["ip", "netns", "add", "hwprobe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", "hwprobe"], capture_output=True, check=False)
    return made.returncode == 0


def add_host(number: int) -> str:
    """A namespace with one interface on the bridge; returns its name."""
    name, outer, inner = f"hw{number}", f"hwout{number}", f"hwin{number}"
    ip("netns", "add", name)
    ip("link", "add", outer, "type", "veth", "peer", "name", inner)
    ip("link", "set", outer, "master", BRIDGE, "up")
    ip("link", "set", inner, "netns", name)
    ip("-n", name, "address", "add", f"{NETWORK}.{10 + number}/24", "dev", inner)
    ip("-n", name, "link", "set", inner, "up")
    ip("-n", name, "link", "set", "lo", "up")
    return name


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    if not can_make_namespaces():
        pytest.skip("network namespaces are not to be had: needs root and iproute2")
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "link", "delete", BRIDGE], capture_output=True, check=False)
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        names = []
        for number in (0, 1):
            undo = ["ip", "netns", "delete", f"hw{number}"]
            stack.callback(subprocess.run, undo, capture_output=True, check=False)
            names.append(add_host(number))
        yield names


def start_lighthouse(stack: ExitStack) -> str:
    command = [sys.executable, "-m", "lighthouse", "serve", "--bind", f"{NETWORK}.1:0", "--http-bind", "none"]
    process = subprocess.Popen(
        [*command, "--state-dir", "none", "--expected-groups", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().split("http://")[1].split(",")[0]


def start_group(
    stack: ExitStack, host: str, group: int, out: Path, tiny: Path, lighthouse: str
) -> subprocess.Popen[bytes]:
    words = ["--replica-group-id", str(group), "--lighthouse-addr", lighthouse, "--out", str(out)]
    process = subprocess.Popen(
        [
            *("ip", "netns", "exec", host, sys.executable, "-m", "replica.launch", "--nproc-per-node", "1"),
            *(str(PACED_TRAINER), str(tiny), *words, "--steps", str(ENDLESS)),
        ],
        stderr=stack.enter_context((out.parent / f"log-{group}").open("ab")),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert process.poll() is None, path.parents[2].joinpath("log-0").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_groups_in_network_namespaces(hosts: list[str], tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with ExitStack() as stack:
        lighthouse = start_lighthouse(stack)
        groups = [start_group(stack, host, i, out, tiny, lighthouse) for i, host in enumerate(hosts)]
        ledgers = [out / "ledger" / f"group-{group}.jsonl" for group in (0, 1)]
        wait_for_lines(ledgers[1], 3, groups[1])
        groups[1].kill()
        groups[1].wait()
        lines = len(ledgers[1].read_text().splitlines())
        again = start_group(stack, hosts[1], 1, out, tiny, lighthouse)
        wait_for_lines(ledgers[1], lines + 2, again)
        for process in (groups[0], again):
            process.terminate()
        assert (groups[0].wait(120), again.wait(120)) == (0, 0), (tmp_path / "log-1").read_text()[-2000:]

    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    addresses = {
        event["group"]: event["advertise_addr"] for event in events if event["kind"] == "group_started"
    }
    assert addresses == {0: f"{NETWORK}.10", 1: f"{NETWORK}.11"}
    healed = [event for event in events if event["kind"] == "heal"]
    assert {(event["group"], *event["healed_from"]) for event in healed} == {(1, 0)}
