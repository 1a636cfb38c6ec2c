"""What the tests of the backstop share: ranks that outlive a test."""

import os
from collections.abc import Iterator

import pytest
from backstop_processes import Group, group_of

from replica.mesh import Ranks


@pytest.fixture(scope="session")
def rank_processes() -> Iterator[Group]:
    """Three ranks; any first few of them are a group."""
    with group_of(3) as group:
        yield group


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """This process as a group of one rank."""
    before = dict(os.environ)
    found = Ranks(device_type="cpu", timeout_s=60)
    yield found
    found.close()
    os.environ.clear()  # children of later tests must not take themselves for a rank
    os.environ.update(before)
