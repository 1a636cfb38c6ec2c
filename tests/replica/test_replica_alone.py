"""A group without a Lighthouse: attempts begin at once, and all its ranks must be willing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lighthouse.client import ColdStart, Phase, SaveOffer, SavesFound
from replica.alone import AloneBridge, AloneStream, NoPeers
from replica.remaining import Remaining, remaining
from replica.rounds import Peer
from replica.streams import StartCheck


def bridge(*, sibling: bool = True, step: int = 5) -> AloneBridge:
    ranks = SimpleNamespace(share=lambda values: [tuple(values), (sibling,)])
    return AloneBridge(group=3, ranks=cast(Any, ranks), step=lambda: step)


def test_it_is_the_one_up_to_date_member() -> None:
    start = bridge().begin()
    assert start.peers == (Peer(group=3, step=5),)
    assert (start.configured, start.changed, start.error, start.stash) == (True, False, None, None)


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("sibling", [True, False])
def test_a_commit_needs_every_rank(mine: bool, sibling: bool) -> None:
    assert bridge(sibling=sibling).vote(mine) is (mine and sibling)


def test_a_sum_over_one_group_is_what_it_brings() -> None:
    tensor = torch.arange(3)
    NoPeers().sum_in_place(tensor)
    NoPeers().max_in_place(tensor)
    assert tensor.tolist() == [0, 1, 2]


def test_nobody_is_asked_or_told() -> None:
    stream = AloneStream()
    stream.wait_until_reachable()
    assert stream.attach("", 1, "", "") is StartCheck.GO_ON
    assert not stream.tells_deaths
    assert not stream.must_heal
    stream.progress(1, Phase.COMPUTE, rounds=2)
    stream.abandon(1, "")
    stream.goodbye(finished=True, step=1)
    stream.goodbye(finished=False, step=1, may_save_s=20.0)
    stream.left()
    stream.close()


def test_it_begins_as_its_saves_say() -> None:
    stream = AloneStream(saves=True)
    assert stream.attach("", 1, "", "") is StartCheck.COLD
    offer = SaveOffer(name="save", step=4, quorum_id=2)
    told = {
        None: ColdStart.LOOK,
        SavesFound(): ColdStart.FRESH,
        SavesFound(highest_quorum_id=9): ColdStart.FRESH,  # what is half written was never the newest
        SavesFound(highest_quorum_id=9, unusable=True): ColdStart.LOST,
        SavesFound(offer=offer, highest_quorum_id=9): ColdStart.RESTORE,
    }
    assert {found: stream.propose(found).verdict for found in told} == told
    assert stream.propose(SavesFound(offer=offer)).save == offer


def test_there_is_nobody_else() -> None:
    assert remaining(AloneStream().status(), job="job", group=0, step=9) is Remaining.NOBODY
