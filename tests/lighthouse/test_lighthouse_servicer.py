"""Our own service over real sockets: attach, death, re-attach, goodbye, status, forget."""

import asyncio
import json
import math

import grpc
import pytest
from serving import Caller, code_of, hello, run, until

from lighthouse.model import StartMode
from lighthouse.slot import Gone
from protos import lighthouse_pb2 as pb

METHOD = "/headway.lighthouse.v1.LighthouseService/"


def gone(caller: Caller, group: int) -> Gone | None:
    return caller.lighthouse.coordinator.machines["job"].table.slots[group].gone


async def status(caller: Caller) -> dict[str, object]:
    reply = pb.StatusResponse.FromString(await caller.raw(METHOD + "Status", b""))
    document: dict[str, object] = json.loads(reply.json)
    return document


def goodbye(step: int, *, finished: bool) -> pb.AttachRequest:
    return pb.AttachRequest(goodbye=pb.Goodbye(step=step, finished=finished))


def test_start_modes() -> None:
    async def body(caller: Caller) -> None:
        modes = []
        for group in (0, 1):
            call = caller.attach()
            await call.write(hello(group))
            modes.append((await call.read()).welcome.start_mode)
        assert modes == [StartMode.FRESH, StartMode.FRESH]
        await asyncio.gather(caller.quorum("job/0:a"), caller.quorum("job/1:a"))
        late = caller.attach()
        await late.write(hello(2))
        assert (await late.read()).welcome.start_mode == StartMode.HEAL

    run(body)


def proposal(replica_id: str = "job/0:b", **fields: object) -> bytes:
    return pb.ProposeSaveRequest(replica_id=replica_id, **fields).SerializeToString()  # type: ignore[arg-type]


def test_a_save_is_proposed_and_loaded() -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(0)
        await caller.quorum("job/0:a")
        await caller.quorum("job/0:a", step=9)
        stream.cancel()
        await until(lambda: gone(caller, 0) is Gone.STREAM_BROKE)
        again = caller.attach()
        await again.write(hello(0, "b"))
        welcome = (await again.read()).welcome
        assert (welcome.start_mode, welcome.step) == (StartMode.RESTORE, 9)
        machine = caller.lighthouse.coordinator.machines["job"]
        machine.cold_starts._warm_until_s = float("-inf")
        offer = pb.SaveOffer(name="step-7", step=7, quorum_id=1)
        verdicts = []
        for request in (proposal(), proposal(looked=True, save=offer), proposal()):
            reply = pb.ProposeSaveResponse.FromString(await caller.raw(METHOD + "ProposeSave", request))
            verdicts.append((reply.verdict, reply.save.name))
        wanted = [pb.COLD_START_LOOK, pb.COLD_START_RESTORE, pb.COLD_START_RESTORE]
        assert verdicts == list(zip(wanted, ("", "step-7", "step-7"), strict=True))
        (job,) = (await status(caller))["jobs"]  # type: ignore[misc]
        assert job["restore"] == {"save": "step-7", "step": 7}
        again.cancel()

    run(body)


def test_malformed_proposals_are_refused() -> None:
    good = {"name": "step-7", "step": 7, "quorum_id": 1}
    bad = [
        b"\xff",
        proposal("pool"),
        proposal("job/zero:a"),
        proposal("job/7:never-seen"),
        proposal(save=pb.SaveOffer(**good)),  # type: ignore[arg-type]
        *(
            proposal(looked=True, save=pb.SaveOffer(**(good | wrong)))  # type: ignore[arg-type]
            for wrong in (
                {"name": ""},
                {"name": "x" * 201},
                {"name": "../x"},
                {"step": -1},
                {"quorum_id": -1},
            )
        ),
        proposal(looked=True, save=pb.SaveOffer(name="x", quorum_id=2**63 - 1)),
    ]

    async def body(caller: Caller) -> None:
        stream = await caller.attached(0, "b")
        caller.lighthouse.coordinator.machines["job"].cold_starts._warm_until_s = float("-inf")
        for request in bad:
            call = caller.raw(METHOD + "ProposeSave", request)
            assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT, request
        stream.cancel()

    run(body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1},
        {"quorum_id": -1},
        {"bytes": -1},
        {"seconds": -1.0},
        {"seconds": math.nan},
        {"age_s": -1.0},
    ],
)
def test_a_malformed_word_about_a_save_ends_the_stream(wrong: dict[str, float]) -> None:
    word = pb.AttachRequest(saved=pb.Saved(**wrong))  # type: ignore[arg-type]
    run(lambda caller: _is_refused(caller, word))


def test_a_malformed_word_about_a_failed_save_ends_the_stream() -> None:
    run(lambda caller: _is_refused(caller, pb.AttachRequest(save_failed=pb.SaveFailed(step=-1))))


async def _is_refused(caller: Caller, word: pb.AttachRequest) -> None:
    stream = await caller.attached(0)
    await stream.write(word)
    assert await code_of(stream) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_cut_stream_frees_the_others_at_once() -> None:
    async def body(caller: Caller) -> None:
        streams = [await caller.attached(group) for group in range(2)]
        await asyncio.gather(caller.quorum("job/0:a"), caller.quorum("job/1:a"))
        waiting = caller.quorum("job/0:a", step=1)
        streams[1].cancel()
        reply = await waiting
        assert [m.replica_id for m in reply.quorum.participants] == ["job/0:a"]
        assert gone(caller, 1) is Gone.STREAM_BROKE
        await caller.beat("job/1:a")
        assert gone(caller, 1) is Gone.STREAM_BROKE
        again = await caller.attached(1)
        assert gone(caller, 1) is None
        again.cancel()

    run(body)


def test_half_closing_without_a_goodbye_is_a_death() -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(0)
        await stream.done_writing()
        assert await code_of(stream) is grpc.StatusCode.OK
        assert gone(caller, 0) is Gone.STREAM_BROKE

    run(body)


def test_goodbye_is_on_record_when_the_stream_ends() -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(0)
        await stream.write(goodbye(12, finished=True))
        assert await code_of(stream) is grpc.StatusCode.OK
        assert gone(caller, 0) is Gone.FINISHED
        late = caller.attach()
        await late.write(hello(1))
        welcome = (await late.read()).welcome
        assert (welcome.start_mode, welcome.step) == (StartMode.FINISHED, 12)

    run(body)


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_a_goodbye_that_cannot_be_is_refused(wrong: float) -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(0)
        await stream.write(pb.AttachRequest(goodbye=pb.Goodbye(step=1, may_save_s=wrong)))
        assert await code_of(stream) is grpc.StatusCode.INVALID_ARGUMENT

    run(body)


@pytest.mark.parametrize(
    ("said_s", "finished", "until_s"), [(7.0, False, 7.0), (1e9, False, 600.0), (7.0, True, 0.0)]
)
def test_a_last_save_is_waited_for_no_longer_than_its_bound(
    said_s: float, finished: bool, until_s: float
) -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(0)
        said = pb.Goodbye(step=1, may_save_s=said_s, finished=finished)
        before_s = caller.lighthouse.coordinator.now_s()
        await stream.write(pb.AttachRequest(goodbye=said))
        assert await code_of(stream) is grpc.StatusCode.OK
        after_s = caller.lighthouse.coordinator.now_s()
        starts = caller.lighthouse.coordinator.machines["job"].cold_starts
        assert starts.awaits_save(before_s + until_s - 0.1) == (until_s > 0)
        assert not starts.awaits_save(after_s + until_s)

    run(body)


def test_a_replaced_incarnation_is_sent_away() -> None:
    async def body(caller: Caller) -> None:
        old = await caller.attached(0, "old")
        new = await caller.attached(0, "new")
        assert (await old.read()).notice.kind == pb.NOTICE_KIND_SUPERSEDED
        assert await code_of(old) is grpc.StatusCode.FAILED_PRECONDITION
        again = caller.attach()
        await again.write(hello(0, "old"))
        assert await code_of(again) is grpc.StatusCode.FAILED_PRECONDITION
        assert gone(caller, 0) is None
        new.cancel()

    run(body)


def test_malformed_streams_are_refused() -> None:
    async def body(caller: Caller) -> None:
        bad = [
            pb.AttachRequest(),
            pb.AttachRequest(progress=pb.Progress(step=1)),
            hello(0, replica_id="job/1:a"),
            hello(0, replica_id="other/0:a"),
            hello(0, replica_id="pool"),
            hello(0, job="a b"),
            hello(0, fingerprint="x" * 2000),
        ]
        for first in bad:
            call = caller.attach()
            await call.write(first)
            assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT, first
        second = await caller.attached(0)
        await second.write(hello(0))
        assert await code_of(second) is grpc.StatusCode.INVALID_ARGUMENT
        assert gone(caller, 0) is Gone.STREAM_BROKE

    run(body)


def test_progress_shows_in_the_status_and_no_secret_does() -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(3, "s3cret")
        await stream.write(pb.AttachRequest(progress=pb.Progress(step=17, phase=pb.PHASE_REDUCE)))
        slots = caller.lighthouse.coordinator.machines["job"].table.slots
        await until(lambda: slots[3].step == 17)
        await caller.quorum("ddp_0:s3cret")
        document = await status(caller)
        assert "s3cret" not in json.dumps(document)
        pool, job = document["jobs"]  # type: ignore[misc]
        assert pool["kind"] == "torchft"
        group = job["groups"][0]
        assert (group["group"], group["step"], group["phase"]) == (3, 17, "reduce")
        assert (group["state"], group["incarnations"], group["attached"]) == ("joining", 1, True)
        await stream.write(pb.AttachRequest(progress=pb.Progress(step=18, phase=99)))  # type: ignore[arg-type]
        await until(lambda: slots[3].step == 18)
        stream.cancel()

    run(body)


def test_forget_starts_over_and_spares_the_living() -> None:
    async def body(caller: Caller) -> None:
        request = pb.ForgetRequest(job="job").SerializeToString()
        stream = await caller.attached(0)
        await caller.quorum("job/0:a")
        await caller.quorum("job/0:a", step=5)
        call = caller.raw(METHOD + "Forget", request)
        assert await code_of(call) is grpc.StatusCode.FAILED_PRECONDITION
        await stream.write(goodbye(6, finished=True))
        assert await code_of(stream) is grpc.StatusCode.OK
        await until(lambda: not caller.lighthouse.coordinator.machines["job"].is_busy(float("inf")))
        assert pb.ForgetResponse.FromString(await caller.raw(METHOD + "Forget", request)).known
        assert not pb.ForgetResponse.FromString(await caller.raw(METHOD + "Forget", request)).known
        fresh = caller.attach()
        await fresh.write(hello(0, "b"))
        assert (await fresh.read()).welcome.start_mode == StartMode.FRESH
        bad = caller.raw(METHOD + "Forget", pb.ForgetRequest(job="a b").SerializeToString())
        assert await code_of(bad) is grpc.StatusCode.INVALID_ARGUMENT

    run(body)
