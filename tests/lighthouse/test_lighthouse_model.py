"""The nouns: which ids and names are taken and which refused, and that no secret is ever shown."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.model import (
    POOL,
    ColdStart,
    JobRecord,
    Member,
    Phase,
    Quorum,
    Restore,
    SaveOffer,
    StartMode,
    is_job_name,
    label,
    parse_replica_id,
)
from protos import lighthouse_pb2

MALFORMED = (
    *("", "x" * 257, "a\nb", "/0:u", "job/0", "job/:u", "job/0:", "job/00:u", "job/-1:u", "job/1e1:u"),
    *("job/0:u/v", "a b/0:u", "job/1234567:u", "j" * 129 + "/0:u", "job/0:" + "u" * 65, "job/0:u\n"),
)


def test_a_job_id_is_taken_apart() -> None:
    id = parse_replica_id("tiny-1/12:0b1c")
    assert (id.job, id.key, id.label) == ("tiny-1", 12, "group 12")


@pytest.mark.parametrize("text", ["ddp_0", "ddp_0:0b1c", "0b1c", "x" * 256])
def test_an_id_without_a_slash_belongs_to_the_pool(text: str) -> None:
    id = parse_replica_id(text)
    assert (id.job, id.key) == (POOL, text)


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_ids_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"^malformed replica id: want ") as caught:
        parse_replica_id(text)
    assert len(text) < 7 or text not in str(caught.value)


@given(st.text(max_size=300))
def test_every_text_is_parsed_or_refused(text: str) -> None:
    try:
        id = parse_replica_id(text)
    except ValueError:
        return
    assert id.text == text
    assert (id.job == POOL) == ("/" not in text)


def test_labels_hide_the_uuid() -> None:
    assert label(3) == "group 3"
    assert label("ddp_0:secret") == "ddp_0"
    assert "secret" not in label("secret")
    assert label("secret") != label("secret2")


def test_job_names() -> None:
    assert is_job_name("tiny-1.b_c")
    assert not any(is_job_name(name) for name in ("", "-x", "a/b", "a:b", "a b", "x" * 129))


def test_place_ignores_what_may_change_from_step_to_step() -> None:
    id = parse_replica_id("job/0:u")
    first = Member(id=id, address="a", store_address="s", step=1, world_size=2)
    assert first.place() == Member(id=id, address="a", store_address="s", step=2, world_size=2).place()
    for other in ({"address": "b"}, {"store_address": "t"}, {"world_size": 3}):
        fields = {"address": "a", "store_address": "s", "world_size": 2} | other
        assert Member(id=id, **fields).place() != first.place()  # type: ignore[arg-type]


def test_max_step() -> None:
    members = tuple(Member(id=parse_replica_id(f"job/{g}:u"), step=g) for g in (2, 5, 3))
    assert Quorum(quorum_id=1, members=members).max_step == 5


def test_numbers_are_those_of_the_wire() -> None:
    assert {f"PHASE_{p.name}": p.value for p in Phase} == dict(lighthouse_pb2.Phase.items())
    known = {f"START_MODE_{m.name}": m.value for m in StartMode}
    assert known.items() <= dict(lighthouse_pb2.StartMode.items()).items()
    cold = {f"COLD_START_{m.name}": m.value for m in ColdStart} | {"COLD_START_UNSPECIFIED": 0}
    assert cold == dict(lighthouse_pb2.ColdStart.items())


@pytest.mark.parametrize("name", ["", "a" * 201, "a/b", "..", "-a", "a b", "a\n", "\u00e4"])
def test_what_no_save_is_called(name: str) -> None:
    with pytest.raises(ValueError, match="malformed name of a save: want 1 to 200"):
        SaveOffer(name=name, step=1, quorum_id=1)


@pytest.mark.parametrize(("step", "quorum_id"), [(-1, 0), (0, -1), (2**62, 0), (0, 2**62)])
def test_numbers_that_no_save_has(step: int, quorum_id: int) -> None:
    with pytest.raises(ValueError, match="step and quorum_id must be"):
        SaveOffer(name="a" * 200, step=step, quorum_id=quorum_id)


@pytest.mark.parametrize(
    "fields",
    [
        {"members": ("job/0:a",)},
        {"max_step": 1},
        {"finished_step": 0},
        {"restore": Restore(save=SaveOffer(name="a", step=0, quorum_id=0), told=())},
    ],
)
def test_a_record_is_blank_until_something_happens(fields: dict[str, object]) -> None:
    blank = JobRecord(job="job", quorum_id=7, floor=7)
    assert blank.is_blank
    assert not replace(blank, **fields).is_blank  # type: ignore[arg-type]
