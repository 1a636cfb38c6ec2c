"""The ranks of a group: they agree, share a store of their own, and end together."""

import json
from collections.abc import Iterator
from subprocess import Popen
from typing import Any

import pytest
import torch.distributed as dist
from children import Children, children, hear, say

from replica.errors import RestartError
from replica.mesh import sibling_death_ends_the_group

Pair = list["Popen[str]"]


@pytest.fixture(scope="module")
def agent_store() -> dist.TCPStore:
    """The store that torchrun's agent keeps for all incarnations of a group."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="module")
def started() -> Iterator[Children]:
    with children() as running:
        yield running


def start_pair(running: Children, store: dist.TCPStore, restart_count: int) -> Pair:
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
    }
    return [running.start("mesh_rank.py", env={**shared, "RANK": str(rank)}) for rank in range(2)]


@pytest.fixture(scope="module")
def pairs(started: Children, agent_store: dist.TCPStore) -> tuple[Pair, Pair]:
    """Two incarnations of one group on the agent's store; the second is ready, the first asked first."""
    return start_pair(started, agent_store, 0), start_pair(started, agent_store, 1)


@pytest.fixture
def pair(pairs: tuple[Pair, Pair]) -> Pair:
    return pairs[0]


def ask(pair: Pair, word: str) -> list[Any]:
    for each in pair:
        say(each, word)
    return [json.loads(hear(each)) for each in pair]


def test_ranks_know_their_place(pair: Pair) -> None:
    assert ask(pair, "about") == [[0, 2, 2], [1, 2, 2]]


def test_integers_are_shared_in_order_of_rank_without_loss(pair: Pair) -> None:
    rows = [[0, -(2**63), 2**63 - 1], [1, -(2**63) + 1, 2**63 - 1]]
    assert ask(pair, "share") == [rows, rows]


def test_the_mean_is_the_same_number_on_all_ranks(pair: Pair) -> None:
    assert ask(pair, "mean") == [(0.1 + 1.1) / 2] * 2


def test_an_action_of_the_first_rank_is_waited_for(pair: Pair) -> None:
    say(pair[1], "first")
    say(pair[0], "first")
    assert [json.loads(hear(each)) for each in pair] == [["action"], []]


def test_each_incarnation_has_a_store_of_its_own(pairs: tuple[Pair, Pair]) -> None:
    old, new = ask(pairs[0], "store"), ask(pairs[1], "store")
    assert old[0] == old[1]
    assert new[0] == new[1]
    assert old[0] != new[0]
    client = dist.TCPStore(*new[0], is_master=False)
    client.set("key", "value")
    assert client.get("key") == b"value"


def test_a_killed_sibling_ends_the_group_at_once(pairs: tuple[Pair, Pair]) -> None:
    survivor, killed = pairs[1]
    assert ask(pairs[1], "about") == [[0, 2, 2], [1, 2, 2]]
    say(survivor, "share")
    killed.kill()
    assert "a rank of this replica group is gone" in json.loads(hear(survivor))


def test_closing_twice_does_nothing_more(pairs: tuple[Pair, Pair]) -> None:
    say(pairs[1][0], "close")
    assert json.loads(hear(pairs[1][0])) == [None, None]


def test_the_sentence_about_a_dead_sibling_is_one_line() -> None:
    with pytest.raises(RestartError) as raised, sibling_death_ends_the_group():
        raise RuntimeError("[gloo/tcp/pair.cc:553] Connection closed by peer\nat frame 7")
    assert str(raised.value) == (
        "a rank of this replica group is gone, and what it said last tells why "
        "(RuntimeError: Connection closed by peer)"
    )


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError), sibling_death_ends_the_group():
        raise KeyError("bug")
