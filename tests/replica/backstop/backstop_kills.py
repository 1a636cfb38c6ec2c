"""Kills writers of saves at random moments, and checks after each that a complete save is there."""

import random
import time
from pathlib import Path

import torch
from backstop_processes import group_of
from backstop_rank import JOB

from replica.backstop.store import Save, Store, Torn

KINDS = [("parameter.large", torch.uint8, (8 << 20,)), ("buffer.small", torch.uint8, (1 << 20,))]


def kill_writers(folder: Path, *, ranks: int, kills: int) -> int:
    """Kill one rank of so many groups, one group after the other; how many torn saves were seen."""
    source, store, newest, torn = random.Random(ranks), Store(str(folder), JOB), 0, 0
    for life in range(1, kills + 1):
        with group_of(ranks) as group:
            for rank in group.ranks:
                rank.tell("save_forever", str(folder), quorum_id=life, kinds=KINDS, of=ranks)
            newest = group.ranks[0].answer()
            end_s = time.monotonic() + source.uniform(0, 0.3)
            while (left_s := end_s - time.monotonic()) > 0:
                if group.ranks[0].pipe.poll(left_s):
                    newest = group.ranks[0].answer()
            source.choice(group.ranks).process.kill()
        torn += check(store, newest)
    return torn


def check(store: Store, newest: int) -> int:
    """The newest complete save is the last one published, or one that was not told any more."""
    listed = store.listed()
    first = next(each for each in listed if isinstance(each, Save))
    assert first.name.step >= newest
    assert store.verify(first) == []
    assert len(listed) <= 4
    torn = [each for each in listed if isinstance(each, Torn)]
    assert all(each.why for each in torn)
    return len(torn)
