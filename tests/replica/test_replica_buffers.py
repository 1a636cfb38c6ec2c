"""Buffers that training changes are refused by the name of their module; all others are left alone."""

import pytest
import torch
from torch import nn

from replica.buffers import BufferGuard
from replica.errors import UserError


class Counter(nn.Module):
    """Counts its forwards in a buffer, in place or by a new tensor."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.count += 1
        else:
            self.count = self.count + 1
        return x


class Cache(nn.Module):
    """Writes the same values into its buffer at every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = torch.arange(4.0)
        return x + self.table


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_a_forward_changes_is_refused_by_name(in_place: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Counter(in_place=in_place))
    guard = BufferGuard(model)
    guard.check()
    model(torch.ones(4))
    with pytest.raises(UserError, match=r"module 1 \(Counter\) changes its buffer count while it trains"):
        guard.check()


def test_a_buffer_of_the_model_itself_is_named_too() -> None:
    model = Counter(in_place=True)
    guard = BufferGuard(model)
    model(torch.ones(1))
    with pytest.raises(UserError, match=r"module root \(Counter\)"):
        guard.check()


def test_a_change_is_found_however_often_it_was_looked_at_before() -> None:
    model = nn.Sequential(Cache(), Counter(in_place=True))
    guard = BufferGuard(model)
    for _ in range(3):
        model[0](torch.ones(4))
        guard.check()
    model[1](torch.ones(4))
    with pytest.raises(UserError):
        guard.check()


def test_a_buffer_that_is_written_with_what_it_held_is_no_trouble() -> None:
    model = nn.Sequential(Cache(), nn.Dropout(0.1))
    guard = BufferGuard(model)
    model(torch.ones(4))
    guard.check()


def test_adopting_a_state_of_equal_buffers_is_no_trouble() -> None:
    model = Cache()
    guard = BufferGuard(model)
    with torch.no_grad():
        model.table.copy_(torch.arange(4.0))
    guard.check()


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_running_statistics_are_refused_at_once(kind: type[nn.Module]) -> None:
    with pytest.raises(UserError, match=r"module 1 .* keeps running statistics.*track_running_stats=False"):
        BufferGuard(nn.Sequential(nn.Linear(4, 4), kind(4)))


def test_normalisation_without_memory_is_welcome() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4), nn.GroupNorm(2, 4))
    guard = BufferGuard(model)
    model(torch.randn(3, 4))
    guard.check()


def test_a_buffer_replaced_many_times_between_two_looks_is_found() -> None:
    model = Counter(in_place=False)
    guard = BufferGuard(model)
    for _ in range(4):  # the memory, and so the identity, of the first is free to come again
        model(torch.ones(1))
    with pytest.raises(UserError, match="changes its buffer count"):
        guard.check()
