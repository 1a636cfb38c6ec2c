"""Rates of a report: bytes over seconds, and no division by nothing."""

import pytest

from replica.transfer.report import DonorShare, Fetched


@pytest.mark.parametrize(
    ("nbytes", "seconds", "rate"), [(3_000_000, 2.0, 1.5), (0, 2.0, 0.0), (5, 0.0, 0.0), (0, -1.0, 0.0)]
)
def test_rates(nbytes: int, seconds: float, rate: float) -> None:
    assert DonorShare(donor="a:1", bytes=nbytes, seconds=seconds).mb_per_s == rate
    fetched = Fetched(step=1, tensors={}, bytes=nbytes, seconds=seconds, donors=(), incidents=())
    assert fetched.mb_per_s == rate
