"""The numeric platform: what torch computes with, told the same way by equal processes."""

import torch

from replica.numerics import numeric_platform


def test_it_names_torch_processor_and_threads() -> None:
    told = numeric_platform("cpu")
    assert torch.__version__ in told
    assert torch.backends.cpu.get_cpu_capability() in told
    assert told.endswith(f"{torch.get_num_threads()} threads")


def test_another_number_of_threads_is_another_platform() -> None:
    before = torch.get_num_threads()
    first = numeric_platform("cpu")
    try:
        torch.set_num_threads(before + 1)
        assert numeric_platform("cpu") != first
    finally:
        torch.set_num_threads(before)
    assert numeric_platform("cpu") == first
