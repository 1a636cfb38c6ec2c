"""A member without the token is kept out by every way in, and the job does not notice; with TLS as well."""

import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from test_e2e_planted_pickle import listening_ports

from lighthouse.access import Access, read_access
from lighthouse.client import (
    AttachStream,
    Hello,
    RefusedError,
    SavesFound,
    drain,
    evict,
    forget,
    leave,
    propose_save,
    status,
)
from protos import torchft_pb2
from replica.ledger import EventKind
from replica.transfer import NotFetched, fetch
from replica.transfer.manifest import Limits
from train.cluster.local_cluster import LocalCluster
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant, pytest.mark.timeout(300)]
TOKEN, OTHER = "the secret of this job", b"the secret of another job"
STEPS = 40
BILLION = 10**9
LIMITS = Limits(tensors=10_000, nbytes=1 << 30)
# What follows a replica id's colon, in a replica id or anywhere else.
UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
Start = dict[str, Any]


@pytest.fixture
def job(paced: Start, tiny: Path) -> Start:
    """Options of a job of STEPS steps in which there is time for an intruder."""
    return {**paced, "args": (str(tiny), "--steps", str(STEPS)), "steps": STEPS, "groups": 2, "ranks": 1}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def intrude_on_torchft_s_wire(address: str) -> None:
    """Ask for a quorum at step 10^9 and beat, as groups that are there and that are not."""
    with grpc.insecure_channel(address) as channel:
        beat, ask = (
            channel.unary_unary(f"/torchft.LighthouseService/{name}") for name in ("Heartbeat", "Quorum")
        )
        for replica_id in ("tiny/0:intruder", "tiny/1:intruder", "tiny/7:intruder", "intruder"):
            pulse = torchft_pb2.LighthouseHeartbeatRequest(replica_id=replica_id)
            beat(pulse.SerializeToString(), timeout=10)
            member = torchft_pb2.QuorumMember(
                replica_id=replica_id, address="http://x:1", store_address="x:1", step=BILLION, world_size=1
            )
            request = torchft_pb2.LighthouseQuorumRequest(requester=member).SerializeToString()
            with pytest.raises(grpc.RpcError) as refusal:
                ask(request, timeout=10)
            assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED


def intrude_on_our_service(address: str, access: Access) -> None:
    """Attach as one that has all the steps, and do all that an operator can do."""
    for group in (0, 1, 7):
        hello = Hello(
            job="tiny", group=group, replica_id=f"tiny/{group}:intruder", group_world_size=1, step=BILLION
        )
        with AttachStream(address, hello, access=access) as stream, pytest.raises(RefusedError):
            stream.open(10.0)
    for act in (
        lambda: drain(address, "tiny", 1, access=access),
        lambda: evict(address, "tiny", 1, access=access),
        lambda: forget(address, "tiny", access=access),
        lambda: leave(address, "tiny/1:intruder", access=access),
        lambda: propose_save(address, "tiny/1:intruder", SavesFound(), access=access),
    ):
        with pytest.raises(RefusedError):
            act()


def ask_every_port_for_the_state(cluster: LocalCluster, token: bytes) -> int:
    """Try to fetch from each port of group 0; how many of them are a donor's, that refuses."""
    refusals = 0
    for port in listening_ports(cluster.pids(0)):
        result = fetch([f"127.0.0.1:{port}"], step=1, expected=LIMITS, fresh=True, timeout_s=0.5, token=token)
        assert isinstance(result, NotFetched)
        refusals += "the token is not that of this job" in result.sentence
    return refusals


def places_of_secrets(cluster: LocalCluster, *secrets: bytes) -> list[str]:
    """Files of the run, arguments and environments of its processes in which a secret can be seen.

    The Lighthouse's state is its own: nobody else can read it.
    """
    state = cluster.out / "lighthouse"
    assert state.stat().st_mode & 0o077 == 0
    files = [path for path in cluster.out.rglob("*") if path.is_file() and state not in path.parents]
    processes = [Path("/proc", str(pid), name) for pid in cluster.pids(0) for name in ("cmdline", "environ")]
    assert len(files) >= 6
    assert len(processes) >= 4
    seen = {str(path): path.read_bytes() for path in (*files, *processes)}
    # torchrun names its runs, and files after them, in the same form.
    seen = {name: re.sub(rb"TORCHELASTIC_\w+=[^\0]*", b"", data) for name, data in seen.items()}
    return [
        name for name, data in seen.items() if UUID.search(data) or any(secret in data for secret in secrets)
    ]


def of_kind(cluster: LocalCluster, kind: EventKind) -> list[dict[str, Any]]:
    return [event for event in cluster.events if event["kind"] == kind]


def heals(cluster: LocalCluster, group: int) -> int:
    return sum(event["group"] == group for event in of_kind(cluster, EventKind.HEAL))


def test_an_intruder_by_any_way_changes_nothing(
    local_cluster: StartCluster, job: Start, token_file: Path
) -> None:
    undisturbed = local_cluster(**job).wait()
    cluster = local_cluster(**job, token_file=token_file)
    cluster.wait_step(3)
    address = cluster.lighthouse_address
    survivor = cluster.pids(0)
    intrude_on_torchft_s_wire(address)
    for access in (Access(), Access(token=OTHER)):
        intrude_on_our_service(address, access)
    assert ask_every_port_for_the_state(cluster, OTHER) == 1
    (known,) = status(address)["jobs"]
    assert known["max_step"] < STEPS
    assert [group["group"] for group in known["groups"]] == [0, 1]
    # One that is started again has to be shown the token anew.
    cluster.kill_lighthouse(down_s=0.0)
    step = cluster.step()
    cluster.wait_step(step + 3)
    cluster.kill(1)
    cluster.wait_step(step + 5, group=1)
    assert heals(cluster, 1) >= 1
    assert places_of_secrets(cluster, TOKEN.encode(), OTHER) == []
    assert cluster.pids(0) == survivor
    cluster.evict(1)
    report = cluster.wait()
    assert report["violations"] == []
    assert report["steps_committed"] == STEPS
    assert report["steps_discarded"] == report["steps_replayed"] == 0
    assert report["final_digest"] == undisturbed["final_digest"]


@pytest.mark.storm
def test_over_tls_a_group_heals_and_who_has_no_certificate_is_kept_out(
    local_cluster: StartCluster, job: Start, token_file: Path, certificates: Path
) -> None:
    tls = {"cert": certificates / "own.pem", "key": certificates / "own.key", "ca": certificates / "ca.pem"}
    cluster = local_cluster(**job, token_file=token_file, tls=tls)
    cluster.wait_step(3)
    address = cluster.lighthouse_address
    foreign = read_access(
        token_file, cert=certificates / "foreign.pem", key=certificates / "foreign.key", ca=tls["ca"]
    )
    for access in (Access(token=TOKEN.encode()), read_access(token_file, ca=tls["ca"]), foreign):
        intrude_on_our_service(address, access)
    # In the clear no donor says a word.
    assert ask_every_port_for_the_state(cluster, TOKEN.encode()) == 0
    step = cluster.step()
    cluster.kill(1)
    cluster.wait_step(step + 2, group=1)
    assert heals(cluster, 1) >= 1
    assert places_of_secrets(cluster, TOKEN.encode(), b"PRIVATE KEY") == []
    cluster.evict(1)
    assert cluster.wait()["violations"] == []
