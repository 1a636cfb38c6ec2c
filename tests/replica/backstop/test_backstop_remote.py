"""Saves at an object store: a real S3 server, reached as users reach theirs, and fsspec's memory."""

import signal
from collections.abc import Iterator

import pytest
import torch
from backstop_processes import Group, group_of
from s3_server import CREDENTIALS, s3_server

from replica.backstop.names import SaveName


def name(step: int, quorum_id: int) -> str:
    return SaveName(step=step, quorum_id=quorum_id, incarnation=f"{quorum_id:08x}").text


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What leads to an S3 server with a bucket `saves`."""
    with s3_server("saves") as found:
        yield found


@pytest.fixture(scope="module")
def remote(environment: dict[str, str]) -> Iterator[Group]:
    """Two ranks that know of the server through their environment alone."""
    with group_of(2) as group:
        group.ask("environment", environment)
        yield group


def test_a_life_at_an_object_store(remote: Group) -> None:
    url = "s3://saves/of/ours"
    one = remote.ranks[0]
    assert one.ask("listed", url) == []
    for step in (1, 2, 3):
        answers = remote.ask("save", url, step=step, quorum_id=1, of=2, keep=2)
        assert "bytes" in answers[0], answers
    assert answers[0]["purged"] == (name(1, 1),)
    assert answers[0]["problem"] is None
    assert one.ask("listed", url) == [(name(3, 1), ""), (name(2, 1), "")]
    assert one.ask("verify", url, name(3, 1)) == []
    assert remote.ask("load", url, folder=name(3, 1), of=2) == [[], []]
    assert one.ask("load", url, folder=name(2, 1), of=1) == []


def test_what_was_not_finished_is_torn_and_goes_when_a_newer_quorum_has_published(remote: Group) -> None:
    url = "s3://saves/of/ours"
    one = remote.ranks[0]
    one.ask("write", f"{url}/waves/{name(9, 2)}/__0_0.distcp", b"half")
    one.ask("write", f"{url}/waves/{name(9, 3)}/__0_0.distcp", b"half")
    remote.ask("save", url, step=4, quorum_id=3, of=2, keep=1, incarnation="000000cc")
    listed = one.ask("listed", url)
    assert [folder for folder, _ in listed] == [name(9, 3), name(4, 3)[:-8] + "000000cc"]
    assert "not finished" in listed[0][1]


@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_writer_killed_at_any_operation_leaves_the_earlier_save(
    remote: Group, environment: dict[str, str], number: int
) -> None:
    url = f"s3://saves/killed/{number}"
    with group_of(1) as group:
        group.ask("environment", environment)
        group.ask("save", url, step=1, quorum_id=1)
        group.ranks[0].tell("save", url, step=2, quorum_id=1, keep=1, signal_at=(number, signal.SIGKILL))
        with pytest.raises(EOFError):
            group.ranks[0].answer()
    one = remote.ranks[0]
    complete = [folder for folder, why in one.ask("listed", url) if not why]
    assert complete == [name(1, 1)]
    assert one.ask("verify", url, name(1, 1)) == []
    remote.ask("save", url, step=3, quorum_id=2, of=2, keep=1)
    assert one.ask("listed", url) == [(name(3, 2), "")]


def test_damage_is_found(remote: Group) -> None:
    url = "s3://saves/damaged"
    one = remote.ranks[0]
    remote.ask("save", url, step=1, quorum_id=1, of=2)
    path = f"{url}/waves/{name(1, 1)}/__1_0.distcp"
    data = bytearray(one.ask("read", path))
    data[100] ^= 1
    one.ask("write", path, bytes(data))
    assert "__1_0.distcp does not have the bytes that were written" in one.ask("verify", url, name(1, 1))[0]
    one.ask("write", path, bytes(data[:-1]))
    assert f"__1_0.distcp has {len(data) - 1} bytes" in one.ask("listed", url)[0][1]


def test_an_older_quorum_gives_up(remote: Group) -> None:
    url = "s3://saves/fenced"
    remote.ask("save", url, step=1, quorum_id=7, of=2)
    answers = remote.ask("save", url, step=2, quorum_id=6, of=2)
    assert [answer["error"] for answer in answers] == ["Fenced"] * 2
    assert remote.ranks[0].ask("listed", url) == [(name(1, 7), "")]


def test_a_large_file_goes_in_parts(remote: Group) -> None:
    url = "s3://saves/large"
    kinds = [("parameter.large", torch.uint8, (52 << 20,))]  # s3fs sends parts of 50 MiB
    assert "bytes" in remote.ask("save", url, step=1, quorum_id=1, of=1, kinds=kinds)[0]
    assert remote.ranks[0].ask("verify", url, name(1, 1)) == []


def test_a_bucket_that_is_not_there_is_told(remote: Group) -> None:
    answers = remote.ask("save", "s3://nowhere/at/all", step=1, quorum_id=1, of=2)
    assert [answer["error"] for answer in answers] == ["SaveFailedError"] * 2
    assert "bucket does not exist" in answers[1]["text"]
    assert "s3://nowhere/at/all/waves" in answers[1]["text"]
    assert remote.ranks[0].ask("buckets") == ["saves"]


def test_a_server_that_is_gone_is_told(remote: Group) -> None:
    with group_of(1) as group:
        group.ask("environment", {**CREDENTIALS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
        (answer,) = group.ask("save", "s3://saves/x", step=1, quorum_id=1, of=1, timeout_s=2.0)
    assert answer["error"] == "SaveFailedError"
    assert "s3://saves/x/waves" in answer["text"]
    assert answer["seconds"] < 10


def test_memory(rank_processes: Group) -> None:
    one = rank_processes.ranks[0]
    for step in (1, 2):
        one.ask("save", "memory://saves", step=step, quorum_id=1, keep=1)
    assert one.ask("listed", "memory://saves") == [(name(2, 1), "")]
    assert one.ask("verify", "memory://saves", name(2, 1)) == []
    assert one.ask("load", "memory://saves", folder=name(2, 1)) == []
