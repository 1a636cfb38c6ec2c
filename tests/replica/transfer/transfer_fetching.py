"""Donors and fetches of small states, as the tests of joiners use them."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from transfer_child import STEP
from transfer_states import plain

from replica.transfer import (
    Donor,
    DonorSettings,
    Fault,
    Fetched,
    FetchSettings,
    NotFetched,
    fetch,
)

CHUNK = 1 << 12
NBYTES = 8 * 4 * 4096  # of a `plain` state: 32 chunks
MIDDLE = NBYTES // 2
PATIENCE_S = 60.0
FAST = FetchSettings(stall_s=20.0, gather_s=20.0)
# With one connection per donor, the bytes of a stream come in the order of the chunks.
ONE = FetchSettings(connections=1, stall_s=20.0, gather_s=20.0)


def donor_of(
    stack: ExitStack, state: dict[str, torch.Tensor], *, step: int = STEP, joiners: int = 100
) -> Donor:
    donor = stack.enter_context(Donor(bind="127.0.0.1", settings=DonorSettings(chunk_bytes=CHUNK)))
    donor.stage(step, state, joiners=joiners)
    return donor


def try_fetch(
    *donors: str, own: dict[str, torch.Tensor] | None = None, **options: Any
) -> Fetched | NotFetched:
    given = {"step": STEP, "fresh": True, "timeout_s": PATIENCE_S, "settings": FAST} | options
    return fetch(donors, expected=plain(0) if own is None else own, **given)


def get(*donors: str, **options: Any) -> Fetched:
    result = try_fetch(*donors, **options)
    assert isinstance(result, Fetched), result.sentence
    return result


def fail(*donors: str, **options: Any) -> NotFetched:
    result = try_fetch(*donors, **options)
    assert isinstance(result, NotFetched)
    return result


def faults(result: Fetched | NotFetched) -> set[tuple[str, Fault]]:
    return {(incident.donor, incident.fault) for incident in result.incidents}


@contextlib.contextmanager
def released() -> Iterator[threading.Event]:
    """An event that is set at the end of the block, so that nobody waits for it any longer."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()
