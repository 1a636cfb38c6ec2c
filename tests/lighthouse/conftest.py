"""Fixtures of the Lighthouse's tests."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that was run in this process has set up logging to a stream that is gone by now."""
    yield
    structlog.reset_defaults()
