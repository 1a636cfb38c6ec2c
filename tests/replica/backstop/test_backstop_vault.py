"""The saves as a group reads them: the newest that is whole, and no conclusion from a store that fails."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from backstop_stores import TroubledFiles
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from replica.backstop.manifest import Facts
from replica.backstop.names import SaveName
from replica.backstop.staging import Staging
from replica.backstop.store import Store, StoreError
from replica.backstop.vault import Found, Vault
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

    def __init__(self, ranks: Ranks, url: Path, timeout_s: float = 30.0) -> None:
        self.model = nn.Linear(4, 4)
        fully_shard(self.model, mesh=ranks.mesh)
        self.state = TrainingState(self.model, torch.optim.AdamW(self.model.parameters()))
        self.store = Store(str(url), "job")
        self.staging = Staging(self.state, init_device_mesh("cpu", (1,)))
        world = dist.group.WORLD
        assert world is not None
        self.world = world
        self.vault = Vault(
            store=self.store, staging=self.staging, process_group=world, ranks=ranks, timeout_s=timeout_s
        )

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
    assert place.vault.look() == Found()
    assert place.vault.find(None) is None
    assert place.vault.find(SaveName(step=1, quorum_id=1, incarnation="00000001")) is None


def test_the_newest_that_is_whole_wins(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = place.save(10, 1), place.save(20, 1)
    third = place.save(15, 2)  # of a later quorum: newer, though its step is lower
    newest = place.vault.look().save
    assert newest is not None
    assert newest.name == third
    for name in (third, second):
        [data] = (tmp_path / "job" / name.text).glob("*.distcp")
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    whole = place.vault.look().save
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
        vault.look()
    with pytest.raises(StoreError, match="Not a directory"):
        vault.find(SaveName(step=1, quorum_id=1, incarnation="00000001"))


@pytest.fixture
def healed() -> Iterator[threading.Event]:
    """What hangs goes on when it is set, at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name == "backstop-io":
            thread.join(30.0)


@pytest.mark.parametrize(
    ("hangs", "at"),
    [("names", ""), ("sizes", "step-"), ("open_to_read", ".json"), ("open_to_read", ".distcp")],
)
def test_a_store_that_hangs_ends_the_search_in_time(
    ranks: Ranks, tmp_path: Path, healed: threading.Event, hangs: str, at: str
) -> None:
    place = Place(ranks, tmp_path, timeout_s=0.2)
    name = place.save(10, 1)

    def meet(doing: str, path: str) -> None:
        if doing == hangs and at in path:
            healed.wait()

    place.store.files = TroubledFiles(place.store, meet)  # type: ignore[assignment]
    with pytest.raises(StoreError, match=r"not done within 0\.2 s"):
        place.vault.look()
    if at != ".distcp":  # which `find` does not read
        with pytest.raises(StoreError, match=r"not done within 0\.2 s"):
            place.vault.find(name)


def test_what_hangs_while_it_is_loaded_changes_nothing_afterwards(
    ranks: Ranks, tmp_path: Path, healed: threading.Event
) -> None:
    place = Place(ranks, tmp_path, timeout_s=0.2)
    name = place.save(10, 1)
    save = place.vault.find(name)
    assert save is not None
    digest = place.state.digest(1)
    with torch.no_grad():
        place.staging.tensors()["parameter.bias"].zero_()
    before = {key: tensor.clone() for key, tensor in place.staging._copies.items()}

    def meet(doing: str, path: str) -> None:
        if doing == "open_to_read" and path.endswith(".distcp"):
            healed.wait()

    place.store.files = TroubledFiles(place.store, meet)  # type: ignore[assignment]
    with pytest.raises(StoreError, match=r"not done within 0\.2 s"):
        place.vault.load(save)
    healed.set()
    for thread in threading.enumerate():
        if thread.name == "backstop-io":
            thread.join(30.0)
    assert place.state.digest(1) == digest
    assert all(torch.equal(tensor, before[key]) for key, tensor in place.staging._copies.items())


def test_one_that_cannot_be_read_is_passed_over_but_is_not_none(
    ranks: Ranks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(ranks, tmp_path)
    older, newest = place.save(10, 1), place.save(20, 2)
    unreadable = {newest.text}

    def meet(doing: str, path: str) -> None:
        if doing == "open_to_read" and path.partition("/")[0] in unreadable:
            raise OSError(errno.EIO, "Input/output error")

    place.store.files = TroubledFiles(place.store, meet)  # type: ignore[assignment]
    found = place.vault.look().save
    assert found is not None
    assert found.name == older
    assert f"skipping save {newest.text}: it cannot be read: Input/output error" in caplog.text
    assert place.vault.find(newest) is None
    unreadable.add(older.text)
    with pytest.raises(StoreError, match=f"no complete save, but some cannot be read: {newest.text}"):
        place.vault.look()


def damage(folder: Path) -> None:
    """Change one byte of its data."""
    [data] = folder.glob("*.distcp")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def test_the_highest_quorum_is_that_of_any_save_however_it_fared(place: Place, tmp_path: Path) -> None:
    good = place.save(10, 1)
    damage(tmp_path / "job" / place.save(20, 3).text)
    found = place.vault.look()
    assert found.save is not None
    assert (found.save.name, found.highest_quorum_id, found.unusable) == (good, 3, False)
    foreign = tmp_path / "job" / SaveName(step=5, quorum_id=7, incarnation="00000002").text
    foreign.mkdir()
    (foreign / "headway.json").write_text("no manifest")
    assert place.vault.look().highest_quorum_id == 7
    (tmp_path / "job" / SaveName(step=5, quorum_id=8, incarnation="00000002").partial).mkdir()
    assert place.vault.look().highest_quorum_id == 8
    (tmp_path / "job" / "step-nine").mkdir()
    assert place.vault.look().highest_quorum_id == 8


def test_saves_that_were_published_and_cannot_be_loaded_are_told_from_none(
    place: Place, tmp_path: Path
) -> None:
    name = SaveName(step=5, quorum_id=2, incarnation="00000002")
    (tmp_path / "job" / name.partial).mkdir(parents=True)
    (tmp_path / "job" / name.text).mkdir()  # at an object store, one in flight
    assert place.vault.look() == Found(highest_quorum_id=2)
    saved = tmp_path / "job" / place.save(10, 1).text
    assert not place.vault.look().unusable
    damage(saved)
    assert place.vault.look() == Found(highest_quorum_id=2, unusable=True)
    (saved / "headway.json").write_text("no manifest")
    assert place.vault.look() == Found(highest_quorum_id=2, unusable=True)
