"""One of two ranks that write saves for tests: job tiny is of the reference model, job other of another.

Arguments: a folder, and the rank. The weights in a save of the tiny model are those of the seed that
is its step.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from replica.backstop import Facts, SaveName, Store, write_save
from train.config import JobConfig, as_document
from train.config_reading import load_config
from train.model import build_model

TINY = Path(__file__).parents[2] / "train" / "configs" / "tiny.toml"
STEPS = (4, 8, 12)
OTHER_WEIGHT = torch.arange(35.0).reshape(7, 5)


def tiny() -> JobConfig:
    return load_config(TINY, {})


def facts(job: str, configuration: dict[str, object], digest: str | None) -> Facts:
    return Facts(
        job=job, group=1, incarnation="0123abcd", group_world_size=2, mode="exact", layout=1, digest=digest,
        fingerprint="f", platform="p", configuration=configuration, saved_at_s=time.time() - 90.0,
    )  # fmt: skip


def main(folder: str, rank: int) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2,))
    group = dist.new_group(backend="gloo")

    def save(job: str, step: int, said: Facts, whole: dict[str, torch.Tensor]) -> None:
        tensors = {
            name: distribute_tensor(tensor, mesh, [Shard(0)]) if name.startswith("parameter.") else tensor
            for name, tensor in whole.items()
        }
        name = SaveName(step=step, quorum_id=step // 4, incarnation="0123abcd")
        store = Store(f"{folder}/saves", job)
        write_save(store, name, said, tensors, process_group=group, keep=9, timeout_s=60.0)

    config = tiny()
    for step in STEPS:
        parameters = dict(build_model(config.model, seed=step).named_parameters())
        state = {f"parameter.{name}": parameter.detach() for name, parameter in parameters.items()}
        state |= {f"optimizer.{name}.step": torch.tensor(float(step)) for name in parameters}
        save("tiny", step, facts("tiny", as_document(config), "d" * 32), state)
    other = {"parameter.weight": OTHER_WEIGHT, "buffer.count": torch.tensor(3)}
    other["optimizer.weight.step"] = torch.ones(())
    save("other", 2, facts("other", {}, None), other)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
