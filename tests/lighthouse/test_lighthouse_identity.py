"""What the groups of a job share: refused by the name of the field, at no cost for the running job."""

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import Caller, code_of, hello, run

from lighthouse.effects import CloseStream, Refuse
from lighthouse.identity import Field, Mismatch, differences, merge, mismatch
from lighthouse.machine import JobMachine
from lighthouse.model import Hello, Identity, JobRecord, Refusal, Welcome, parse_replica_id
from lighthouse.quorum import Rules
from lighthouse.table import Effects, Limits

OURS = Identity(fingerprint="f1", group_world_size=2, platform="cpu")

identities = st.builds(
    Identity,
    fingerprint=st.sampled_from(["", "f1", "f2"]),
    group_world_size=st.integers(0, 2),
    platform=st.sampled_from(["", "cpu", "gpu"]),
)


def machine(**record: object) -> JobMachine:
    base: dict[str, object] = {"job": "job", "quorum_id": 0}
    return JobMachine(
        record=JobRecord(**(base | record)),  # type: ignore[arg-type]
        rules=Rules(),
        limits=Limits(),
        warm_until_s=5.0,
    )


def attach(
    to: JobMachine, group: int, *, now_s: float = 10.0, incarnation: str = "a", **fields: object
) -> tuple[Welcome | Refusal | Mismatch, Effects]:
    id = parse_replica_id(f"job/{group}:{incarnation}")
    shared: dict[str, object] = {"fingerprint": "f1", "group_world_size": 2, "platform": "cpu"}
    said = Hello(job="job", group=group, replica_id=id.text, **(shared | fields))  # type: ignore[arg-type]
    return to.attach(id, said, hash((group, incarnation, now_s)), now_s)


@pytest.mark.parametrize(
    ("fields", "field", "offered", "wanted"),
    [
        ({"fingerprint": "f2"}, Field.FINGERPRINT, "f2", "f1"),
        ({"group_world_size": 4}, Field.GROUP_WORLD_SIZE, "4", "2"),
        ({"platform": "gpu"}, Field.PLATFORM, "gpu", "cpu"),
    ],
)
def test_a_group_that_differs_is_refused_by_name(
    fields: dict[str, object], field: Field, offered: str, wanted: str
) -> None:
    job = machine()
    assert isinstance(attach(job, 0)[0], Welcome)
    outcome, effects = attach(job, 1, **fields)
    assert isinstance(outcome, Mismatch)
    assert (outcome.field, outcome.offered, outcome.wanted) == (field, offered, wanted)
    text = outcome.sentence()
    assert text.startswith(f"{field.value} differs: this group has {offered}, the running job has {wanted}: ")
    assert "\n" not in text
    assert [type(effect).__name__ for effect in effects] == ["Note"]
    assert 1 not in job.table.slots


def test_of_two_fingerprints_in_words_those_that_differ_are_named() -> None:
    job = machine()
    attach(job, 0, fingerprint="model.dim=128 optimizer.lr=0.003 job.seed=0")
    outcome, _ = attach(job, 1, fingerprint="model.dim=128 optimizer.lr=0.01 job.seed=0")
    assert isinstance(outcome, Mismatch)
    assert outcome.sentence().startswith(
        "fingerprint differs: this group has optimizer.lr=0.01, the running job has optimizer.lr=0.003: "
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ("abc", "def", ("abc", "def")),
        ("a=1 b=2", "def", ("a=1 b=2", "def")),
        ("a=1 b=2", "a=1 b=3 c=4", ("b=2", "b=3 c=4")),
        ("a=1 b=2", "a=1", ("a=1 b=2", "a=1")),
        ("a=1 b=2 c=3", "a=1 b=2", ("c=3", "nothing else")),
    ],
)
def test_the_words_that_differ(ours: str, theirs: str, shown: tuple[str, str]) -> None:
    assert differences(ours, theirs) == shown


def test_a_sentence_stays_a_sentence() -> None:
    ours, theirs = (" ".join(f"{letter * 500}{n}=1" for n in range(40)) for letter in "ab")
    assert max(map(len, differences(ours, theirs))) < 400
    ours, theirs = (" ".join(f"{letter}{n}=1" for n in range(40)) for letter in "ab")
    assert differences(ours, theirs)[0] == "a0=1 a1=1 a2=1 a3=1 a4=1 a5=1 and 34 more"
    assert max(map(len, differences("a" * 1000, "b" * 1000))) < 400


def test_a_stranger_does_not_displace_the_group_whose_number_it_uses() -> None:
    job = machine()
    attach(job, 0)
    outcome, effects = attach(job, 0, incarnation="b", fingerprint="f2")
    assert isinstance(outcome, Mismatch)
    assert not any(isinstance(effect, CloseStream | Refuse) for effect in effects)
    assert job.table.slots[0].id.text == "job/0:a"


def test_what_is_left_empty_is_not_compared_and_what_is_said_later_is_learnt() -> None:
    job = machine()
    assert isinstance(attach(job, 0, fingerprint="", platform="")[0], Welcome)
    assert isinstance(attach(job, 1, platform="")[0], Welcome)
    assert isinstance(attach(job, 2, fingerprint="f2", platform="")[0], Mismatch)
    assert isinstance(attach(job, 3)[0], Welcome)
    assert job.record.identity == OURS


def test_where_nobody_lives_and_no_step_is_on_record_a_new_identity_takes_over() -> None:
    job = machine(identity=OURS)
    assert isinstance(attach(job, 0, fingerprint="f9", group_world_size=7)[0], Welcome)
    assert job.record.identity.fingerprint == "f9"


def test_where_nobody_lives_and_steps_are_on_record_only_the_number_of_ranks_may_change() -> None:
    job = machine(identity=OURS, max_step=9)
    outcome, _ = attach(job, 0, fingerprint="f9")
    assert isinstance(outcome, Mismatch)
    assert "or start over with `lighthouse forget ADDR job`" in outcome.sentence()
    assert isinstance(attach(job, 0, platform="gpu")[0], Mismatch)
    assert isinstance(attach(job, 0, group_world_size=7)[0], Welcome)
    assert job.record.identity == Identity(fingerprint="f1", group_world_size=7, platform="cpu")
    assert isinstance(attach(job, 1)[0], Mismatch), "from now on the new number holds"


def test_a_server_that_has_just_begun_lets_nobody_change_the_number_of_ranks() -> None:
    job = machine(identity=OURS, max_step=9, quorum_id=3, members=("job/0:a", "job/1:a"))
    assert attach(job, 1, incarnation="b", group_world_size=7, now_s=1.0)[0] is Refusal.WARMING_UP
    assert isinstance(attach(job, 1, incarnation="b", fingerprint="f2", now_s=1.0)[0], Mismatch)
    assert isinstance(attach(job, 0, now_s=1.1)[0], Welcome)
    assert isinstance(attach(job, 1, incarnation="b", group_world_size=7, now_s=5.1)[0], Mismatch)


def test_over_the_wire_it_is_a_precondition_and_the_job_goes_on() -> None:
    async def body(caller: Caller) -> None:
        stream = caller.attach()
        await stream.write(hello(0, fingerprint="f1"))
        await stream.read()
        stranger = caller.attach()
        await stranger.write(hello(1, fingerprint="f2"))
        assert await code_of(stranger) is grpc.StatusCode.FAILED_PRECONDITION
        assert "fingerprint differs: this group has f2" in await stranger.details()
        reply = await asyncio.wait_for(caller.quorum("job/0:a"), 5)
        assert len(reply.quorum.participants) == 1
        stream.cancel()

    run(body)


@given(identities, identities, st.booleans())
def test_whoever_is_let_in_fits_what_is_then_known(known: Identity, offered: Identity, running: bool) -> None:
    if mismatch("job", offered, known, running=running) is None:
        merged = merge(known, offered, running=running)
        assert mismatch("job", offered, merged, running=True) is None
        for name in ("fingerprint", "group_world_size", "platform"):
            assert getattr(merged, name) in (getattr(known, name), getattr(offered, name))
            assert bool(getattr(merged, name)) == bool(getattr(known, name) or getattr(offered, name))
