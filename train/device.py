"""Which device a rank trains on."""

import os

import torch

from replica.errors import UserError


def choose_device(wanted: str) -> str:
    """ "cuda" or "cpu" for a configured "auto", "cuda" or "cpu"; CUDA's current device is set.

    Each rank takes the device of its LOCAL_RANK. Raises UserError when CUDA is wanted and absent.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return "cpu"
    local_rank, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= devices:
        raise UserError(
            f"rank {local_rank} of this host needs a CUDA device of its own and there are {devices}: "
            f'start fewer ranks per host, or set run.device = "cpu"'
        )
    torch.cuda.set_device(local_rank)
    return "cuda"
