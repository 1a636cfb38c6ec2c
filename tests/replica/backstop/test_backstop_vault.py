"""The saves as a group reads them: the newest that is whole, and no conclusion from a store that fails."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from replica.backstop.manifest import Facts
from replica.backstop.names import SaveName
from replica.backstop.staging import Staging
from replica.backstop.store import Store, StoreError
from replica.backstop.vault import Vault
from replica.backstop.writing import write_save
from replica.mesh import Ranks
from replica.state import TrainingState

FACTS = Facts(
    job="job",
    group=0,
    incarnation="00000001",
    group_world_size=1,
    mode="exact",
    layout=1,
    digest=None,
    fingerprint="f",
    platform="p",
    configuration={},
    saved_at_s=1.0,
)


class Place:
    """A store, the state of one rank, and its vault."""

    def __init__(self, ranks: Ranks, url: Path) -> None:
        self.model = nn.Linear(4, 4)
        fully_shard(self.model, mesh=ranks.mesh)
        self.state = TrainingState(self.model, torch.optim.AdamW(self.model.parameters()))
        self.store = Store(str(url), "job")
        self.staging = Staging(self.state, init_device_mesh("cpu", (1,)))
        world = dist.group.WORLD
        assert world is not None
        self.world = world
        self.vault = Vault(store=self.store, staging=self.staging, process_group=world, ranks=ranks)

    def save(self, step: int, quorum_id: int) -> SaveName:
        name = SaveName(step=step, quorum_id=quorum_id, incarnation="00000001")
        self.staging.copy()
        tensors = self.staging.tensors()
        write_save(self.store, name, FACTS, tensors, process_group=self.world, keep=9, timeout_s=30.0)
        return name


@pytest.fixture
def place(ranks: Ranks, tmp_path: Path) -> Place:
    return Place(ranks, tmp_path)


def test_without_any_save_there_is_none(place: Place) -> None:
    assert place.vault.newest() is None
    assert place.vault.find(None) is None
    assert place.vault.find(SaveName(step=1, quorum_id=1, incarnation="00000001")) is None


def test_the_newest_that_is_whole_wins(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = place.save(10, 1), place.save(20, 1)
    third = place.save(15, 2)  # of a later quorum: newer, though its step is lower
    newest = place.vault.newest()
    assert newest is not None
    assert newest.name == third
    for name in (third, second):
        [data] = (tmp_path / "job" / name.text).glob("*.distcp")
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    whole = place.vault.newest()
    assert whole is not None
    assert whole.name == first
    assert f"skipping save {third.text}" in caplog.text
    assert "checksum differs" in caplog.text


def test_the_one_that_is_named_is_found_and_loaded(place: Place) -> None:
    digest = place.state.digest(1)
    name = place.save(10, 1)
    with torch.no_grad():
        place.model.weight.add_(1.0)
    save = place.vault.find(name)
    assert save is not None
    place.vault.load(save)
    assert place.state.digest(1) == digest


def test_a_store_that_cannot_be_read_is_not_one_without_saves(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    vault = Place(ranks, tmp_path / "file").vault
    with pytest.raises(StoreError, match="Not a directory"):
        vault.newest()
    with pytest.raises(StoreError, match="Not a directory"):
        vault.find(SaveName(step=1, quorum_id=1, incarnation="00000001"))
