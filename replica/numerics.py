"""What the bits of a result depend on besides the program and its input."""

import torch


def numeric_platform(device_type: str) -> str:
    """The torch version, the kind of processor and the CPU threads of this process, on one line.

    Groups whose lines differ may round differently; equal lines promise equal bits as far as torch
    does. device_type is "cpu" or "cuda".
    """
    if device_type == "cuda":
        processor = torch.cuda.get_device_name()
    else:
        processor = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {processor}, {torch.get_num_threads()} threads"
