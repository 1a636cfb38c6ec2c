"""A pickle that runs code is sent to every port of a running job: it runs nothing, and nobody is hurt."""

import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]
GROUPS = 2
LISTENS = "0A"


class Planted:
    """Leaves a folder behind where anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def listening_ports(pids: list[int]) -> set[int]:
    """The TCP ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(os.readlink(link))
    rows = [
        row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()
    ]
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == LISTENS and f"socket:[{row[9]}]" in inodes
    }


def openings(planted: bytes) -> Iterator[bytes]:
    """The ways in which protocols say that so many bytes follow, and a few messages of our own."""
    yield b""
    for width in (4, 8):
        yield from (len(planted).to_bytes(width, order) for order in ("big", "little"))
    yield b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(planted)
    for kind in range(1, 10):
        yield b"HWXF\x01" + bytes([kind]) + len(planted).to_bytes(4)


def plant(port: int, planted: bytes) -> int:
    """Send it in all ways to a port; how many connections were taken."""
    taken = 0
    for opening in openings(planted):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5.0) as peer:
            taken += 1
            peer.settimeout(0.05)
            peer.sendall(opening + planted)
            peer.shutdown(socket.SHUT_WR)
            peer.recv(4096)
    return taken


def ports_of(cluster: LocalCluster) -> set[int]:
    own = {int(address.rpartition(":")[2]) for address in (cluster.lighthouse_address, cluster.status_url)}
    return own | listening_ports([pid for group in range(GROUPS) for pid in cluster.pids(group)])


def test_a_planted_pickle_runs_nothing_on_any_port(
    local_cluster: StartCluster, paced: dict[str, Any], tmp_path: Path
) -> None:
    planted = pickle.dumps(Planted(tmp_path / "ran"))
    cluster = local_cluster(**paced, groups=GROUPS, ranks=2)
    for group in range(GROUPS):
        cluster.wait_step(3, group=group)
    pids = [cluster.pids(group) for group in range(GROUPS)]
    ports = ports_of(cluster)
    # The Lighthouse's two; of each group the launcher's; of each rank its donor's and gloo's, at least.
    assert len(ports) >= 2 + GROUPS * (1 + 2 * 2)
    assert all(plant(port, planted) for port in ports)
    for group in range(GROUPS):
        cluster.wait_step(cluster.step() + 2, group=group)
    assert [cluster.pids(group) for group in range(GROUPS)] == pids
    assert not (tmp_path / "ran").exists()
    cluster.stop(grace_s=0.0)
    assert cluster.report()["violations"] == []
    pickle.loads(planted)
    assert (tmp_path / "ran").exists(), "it would have run"
