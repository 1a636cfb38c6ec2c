"""A server with a token: strangers get nothing done, whatever they try; who holds it works as ever."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from serving import Caller, code_of, heartbeat, hello, run

from lighthouse.challenge import credentials
from lighthouse.metrics import render_metrics
from lighthouse.model import Refusal
from protos import lighthouse_pb2 as pb
from protos import torchft_pb2

TOKEN = b"the secret of this job"
OURS = "/headway.lighthouse.v1.LighthouseService/"
BILLION = 10**9
REQUESTS = {
    "Leave": pb.LeaveRequest(replica_id="job/0:a"),
    "Evict": pb.EvictRequest(job="job", group=0),
    "Drain": pb.DrainRequest(job="job", group=0),
    "Forget": pb.ForgetRequest(job="job"),
    "ProposeSave": pb.ProposeSaveRequest(replica_id="job/0:a"),
}
STREAMS = {"Attach": hello(0), "Watch": pb.WatchRequest(hello=hello(0).hello)}
ACTING = (*REQUESTS, *STREAMS)
Metadata = tuple[tuple[str, str], ...]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o600)
    return path


async def nonce_of(caller: Caller) -> bytes:
    reply = await caller.raw(OURS + "Challenge", b"")
    return pb.ChallengeResponse.FromString(reply).nonce


async def shown(caller: Caller, method: str, token: bytes = TOKEN) -> Metadata:
    """What a caller with this token shows for one call."""
    return (("authorization", credentials(token, method=method, nonce=await nonce_of(caller))),)


async def outcome(caller: Caller, method: str, metadata: Metadata = ()) -> tuple[grpc.StatusCode, str]:
    """How a call with this metadata ends; a stream that is opened is closed again."""
    if method in REQUESTS:
        call = caller.channel.unary_unary(OURS + method)(
            REQUESTS[method].SerializeToString(), metadata=metadata, timeout=10.0
        )
        return await call.code(), await call.details()
    call = caller.channel.stream_stream(OURS + method)(metadata=metadata, timeout=10.0)
    try:
        await call.write(STREAMS[method].SerializeToString())
        if await call.read() is not grpc.aio.EOF:
            return grpc.StatusCode.OK, ""
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    return await call.code(), await call.details()


async def attached(caller: Caller, group: int, incarnation: str = "a") -> Any:
    call = caller.channel.stream_stream(
        OURS + "Attach", request_serializer=pb.AttachRequest.SerializeToString
    )(metadata=await shown(caller, "Attach"), timeout=30.0)
    await call.write(hello(group, incarnation))
    assert await call.read() is not grpc.aio.EOF
    return call


def known(caller: Caller) -> dict[str, list[str]]:
    """What the server knows: the replica ids by job."""
    machines = caller.lighthouse.coordinator.machines
    return {job: [slot.id.text for slot in m.table.slots.values()] for job, m in machines.items()}


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer ",
        "Bearer the secret of another job",
        "bearer the secret of this jo",
        "Basic " + TOKEN.decode(),
        TOKEN.decode(),
        "Headway x y",
        "Headway",
    ],
)
def test_without_the_token_nothing_acts(token_file: Path, authorization: str) -> None:
    async def body(caller: Caller) -> None:
        for method in ACTING:
            metadata = (("authorization", authorization),) if authorization else ()
            code, details = await outcome(caller, method, metadata)
            assert code is grpc.StatusCode.UNAUTHENTICATED, (method, details)
            assert "--token-file" in details
        assert known(caller) == {}

    run(body, token_file=token_file)


def test_a_proof_with_another_token_for_another_method_or_an_old_nonce_does_not_count(
    token_file: Path,
) -> None:
    async def body(caller: Caller) -> None:
        for method in ACTING:
            wrong = await shown(caller, method, b"the secret of another job")
            assert (await outcome(caller, method, wrong))[0] is grpc.StatusCode.UNAUTHENTICATED
            other = await shown(caller, "Status")
            assert (await outcome(caller, method, other))[0] is grpc.StatusCode.UNAUTHENTICATED
        seen = await shown(caller, "Drain")
        assert (await outcome(caller, "Drain", seen))[0] is grpc.StatusCode.OK
        code, details = await outcome(caller, "Drain", seen)
        assert (code, "stale_nonce" in details) == (grpc.StatusCode.ABORTED, True)

    run(body, token_file=token_file)


@pytest.mark.parametrize("bearer", [False, True])
def test_with_the_token_everything_is_let_through(token_file: Path, bearer: bool) -> None:
    async def body(caller: Caller) -> None:
        allowed = set()
        for method in ACTING:
            plain = (("authorization", f"Bearer {TOKEN.decode()}"),)
            code, _ = await outcome(caller, method, plain if bearer else await shown(caller, method))
            allowed.add(code)
        # Nobody lives here: some calls are refused for that.
        assert allowed <= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
        assert not caller.lighthouse.coordinator.turned_away.by_method

    run(body, token_file=token_file)


def test_what_can_only_be_read_is_open(token_file: Path) -> None:
    async def body(caller: Caller) -> None:
        assert pb.StatusResponse.FromString(await caller.raw(OURS + "Status", b"")).json
        events = caller.channel.unary_stream(OURS + "WatchEvents")(b"", timeout=10.0)
        await events.initial_metadata()
        stream = await attached(caller, 0)
        assert b"replica_appeared" in await events.read()
        stream.cancel()

    run(body, token_file=token_file)


def test_torchft_s_wire_serves_only_incarnations_that_have_attached(token_file: Path) -> None:
    async def body(caller: Caller) -> None:
        stream = await attached(caller, 0)
        before = known(caller)
        for stranger in ("job/0:b", "job/1:b", "other/0:a", "torchft-only"):
            assert await caller.beat(stranger) == b""
            call = caller.quorum(stranger, step=BILLION)
            assert await code_of(call) is grpc.StatusCode.PERMISSION_DENIED
            assert await call.details() == Refusal.NOT_ADMITTED.value + (
                ": a token is set here, attach with it first (trainer: --token-file)"
            )
        assert known(caller) == before == {"job": ["job/0:a"]}
        reply = await caller.quorum("job/0:a")
        assert [member.replica_id for member in reply.quorum.participants] == ["job/0:a"]
        assert caller.lighthouse.coordinator.machines["job"].record.max_step == 0
        stream.cancel()

    # With a state directory it need not wait for groups that it does not know of.
    run(body, token_file=token_file, state_dir=token_file.parent / "state")


def test_one_that_was_put_out_hears_so_on_torchft_s_wire(token_file: Path) -> None:
    async def body(caller: Caller) -> None:
        await attached(caller, 0, "a")
        newer = await attached(caller, 0, "b")
        call = caller.quorum("job/0:a")
        assert await code_of(call) is grpc.StatusCode.FAILED_PRECONDITION
        assert (await call.details()).startswith("superseded")
        newer.cancel()

    run(body, token_file=token_file)


def test_without_a_token_file_no_nonce_is_given_and_all_is_open() -> None:
    async def body(caller: Caller) -> None:
        assert await nonce_of(caller) == b""
        assert (await outcome(caller, "Attach"))[0] is grpc.StatusCode.OK

    run(body)


def test_a_flood_of_strangers_is_counted_by_method_and_costs_no_memory_and_few_lines(
    token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(caller: Caller) -> None:
        stranger = torchft_pb2.LighthouseQuorumRequest(
            requester=torchft_pb2.QuorumMember(replica_id="job/1:x", step=BILLION)
        ).SerializeToString()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: outcome(caller, "Evict"),
            lambda: outcome(caller, "Attach"),
            lambda: nonce_of(caller),
            lambda: code_of(caller.raw("/torchft.LighthouseService/Quorum", stranger)),
            lambda: caller.raw("/torchft.LighthouseService/Heartbeat", heartbeat("job/1:x")),
        ]
        for _ in range(50):
            await asyncio.gather(*(call() for call in calls))
        coordinator = caller.lighthouse.coordinator
        assert coordinator.turned_away.by_method == dict.fromkeys(
            ("Evict", "Attach", "Quorum", "Heartbeat"), 50
        )
        assert known(caller) == {}
        metrics = render_metrics(coordinator).decode()
        assert 'headway_lighthouse_calls_turned_away_total{method="Evict"} 50.0' in metrics

    run(body, token_file=token_file)
    assert capsys.readouterr().out.count("calls_turned_away") <= 2
