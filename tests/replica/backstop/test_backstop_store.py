"""A store tells complete saves from torn ones, finds damage, and removes only what is superfluous."""

import errno
import json
import sys
import threading
from pathlib import Path

import pytest
import xxhash
from backstop_rank import facts
from backstop_stores import TroubledFiles
from hypothesis import given
from hypothesis import strategies as st

from replica.backstop.deadline import Deadline
from replica.backstop.manifest import FILE_NAME, FileEntry, Manifest
from replica.backstop.names import SaveName
from replica.backstop.store import Purged, Save, Store, StoreError, Torn
from replica.errors import UserError

DATA = {".metadata": b"about", "__0_0.distcp": bytes(range(256)) * 100, "__1_0.distcp": b""}


def planted(root: Path, step: int, quorum_id: int, incarnation: str = "000000aa") -> Path:
    """A complete save of a few bytes."""
    name = SaveName(step=step, quorum_id=quorum_id, incarnation=incarnation)
    folder = root / "waves" / name.text
    folder.mkdir(parents=True)
    for file, data in DATA.items():
        (folder / file).write_bytes(data)
    files = tuple(
        FileEntry(name=file, bytes=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))
        for file, data in DATA.items()
    )
    manifest = Manifest(name=name, facts=facts(incarnation, 1), versions={}, files=files)
    (folder / FILE_NAME).write_bytes(manifest.encode())
    return folder


def only(store: Store) -> Save | Torn:
    (found,) = store.listed()
    return found


def test_there_may_be_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "not" / "there"), "waves")
    assert store.listed() == []
    assert store.published() == []
    assert not (tmp_path / "not").exists()


def test_the_newest_comes_first_by_quorum_and_then_by_step(tmp_path: Path) -> None:
    for step, quorum_id in ((400, 2), (100, 11), (90, 11), (500, 1)):
        planted(tmp_path, step, quorum_id)
    (tmp_path / "waves" / "step-of-a-person").mkdir()
    (tmp_path / "waves" / "notes").mkdir()
    (tmp_path / "waves" / ".trash-step-000000000001-quorum-000000000001-000000ff").mkdir()
    listed = Store(str(tmp_path), "waves").listed()
    assert [each.name.order for each in listed if isinstance(each, Save)] == [
        (11, 100),
        (11, 90),
        (2, 400),
        (1, 500),
    ]
    assert [each.folder for each in listed if isinstance(each, Torn)] == ["step-of-a-person"]
    assert [name.order for name in Store(str(tmp_path), "waves").published()] == [
        (11, 100),
        (11, 90),
        (2, 400),
        (1, 500),
    ]


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    planted(tmp_path, 1, 1)
    assert isinstance(only(Store(f"file://{tmp_path}/", "waves")), Save)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / FILE_NAME).unlink(), "has no headway.json"),
        (lambda folder: (folder / FILE_NAME).write_bytes(b""), "not JSON"),
        (lambda folder: (folder / FILE_NAME).write_bytes(b"[" * 100_000), "not JSON"),
        (lambda folder: (folder / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
        (lambda folder: (folder / "__1_0.distcp").write_bytes(b"a"), "__1_0.distcp has 1 bytes, not 0"),
        (lambda folder: (folder / ".metadata").write_bytes(b"abou"), ".metadata has 4 bytes, not 5"),
        (lambda folder: folder.rename(folder.with_name(folder.name[:-2] + "bb")), "its manifest is that of"),
        (lambda folder: folder.rename(folder.with_name(".partial-" + folder.name)), "was not finished"),
        (lambda folder: [file.unlink() for file in folder.iterdir()], "has no headway.json"),
        (lambda folder: folder.rename(folder.with_name("step-1")), "its name is not that of a save"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_torn_and_says_why(tmp_path: Path, damage, why: str) -> None:
    damage(planted(tmp_path, 1, 1))
    found = only(Store(str(tmp_path), "waves"))
    assert isinstance(found, Torn)
    assert why in found.why


def test_a_save_of_another_job_is_torn(tmp_path: Path) -> None:
    planted(tmp_path, 1, 1)
    (tmp_path / "waves").rename(tmp_path / "ripples")
    found = only(Store(str(tmp_path), "ripples"))
    assert isinstance(found, Torn)
    assert "of job waves" in found.why


@given(
    st.binary(max_size=200) | st.dictionaries(st.text(), st.integers()).map(lambda d: json.dumps(d).encode())
)
def test_garbage_for_a_manifest_is_torn(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = planted(tmp_path_factory.mktemp("store"), 1, 1)
    (folder / FILE_NAME).write_bytes(data)
    found = only(Store(str(folder.parents[1]), "waves"))
    assert isinstance(found, Torn)
    assert found.why


@given(st.integers(0, len(DATA["__0_0.distcp"]) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int
) -> None:
    folder = planted(tmp_path_factory.mktemp("store"), 1, 1)
    store = Store(str(folder.parents[1]), "waves")
    data = bytearray(DATA["__0_0.distcp"])
    data[position] ^= flip
    (folder / "__0_0.distcp").write_bytes(data)
    save = only(store)
    assert isinstance(save, Save)
    (problem,) = store.verify(save)
    assert problem.startswith(f"{folder.name}/__0_0.distcp does not have the bytes that were written")


def test_verify_finds_what_changes_after_listing(tmp_path: Path) -> None:
    folder, store = planted(tmp_path, 1, 1), Store(str(tmp_path), "waves")
    save = only(store)
    assert isinstance(save, Save)
    assert store.verify(save) == []
    (folder / ".metadata").unlink()
    (folder / "__1_0.distcp").write_bytes(b"more")
    assert [problem.split("/")[1] for problem in store.verify(save)] == [
        ".metadata is missing",
        "__1_0.distcp has 4 bytes, not 0",
    ]


@pytest.mark.parametrize("of", [1, 2, 3, 5])
def test_ranks_share_the_work_of_verify(tmp_path: Path, of: int) -> None:
    folder, store = planted(tmp_path, 1, 1), Store(str(tmp_path), "waves")
    save = only(store)
    assert isinstance(save, Save)
    for file in DATA:
        (folder / file).write_bytes(b"changed")
    parts = [store.verify(save, part=(index, of)) for index in range(of)]
    assert sorted(problem for part in parts for problem in part) == sorted(store.verify(save))
    assert max(len(part) for part in parts) == -(-3 // of)


def test_verify_reads_large_files_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replica.backstop.store._CHUNK_BYTES", 1000)
    planted(tmp_path, 1, 1)
    store = Store(str(tmp_path), "waves")
    save = only(store)
    assert isinstance(save, Save)
    assert store.verify(save) == []


def own(step: int, quorum_id: int) -> SaveName:
    return SaveName(step=step, quorum_id=quorum_id, incarnation="000000aa")


def test_purge_keeps_the_newest_and_what_it_does_not_know(tmp_path: Path) -> None:
    for step in range(1, 6):
        planted(tmp_path, step, 1)
    (tmp_path / "waves" / "notes").mkdir()
    purged = Store(str(tmp_path), "waves").purge(own(5, 1), keep=2)
    assert purged == Purged(folders=tuple(own(step, 1).text for step in (1, 2, 3)), problem=None)
    assert sorted(path.name[:17] for path in (tmp_path / "waves").iterdir()) == [
        "notes",
        "step-000000000004",
        "step-000000000005",
    ]


def test_what_has_no_manifest_does_not_count_as_a_save(tmp_path: Path) -> None:
    for step in range(1, 5):
        planted(tmp_path, step, step)
    for step in (2, 3):
        next((tmp_path / "waves").glob(f"step-{step:012d}*/{FILE_NAME}")).unlink()
    Store(str(tmp_path), "waves").purge(own(4, 4), keep=2)
    assert [each.name.step for each in Store(str(tmp_path), "waves").listed()] == [4, 1]


def test_nothing_is_purged_where_nothing_is_published(tmp_path: Path) -> None:
    (tmp_path / "waves" / own(1, 1).partial).mkdir(parents=True)
    assert Store(str(tmp_path), "waves").purge(own(3, 3), keep=1) == Purged(folders=(), problem=None)
    assert (tmp_path / "waves" / own(1, 1).partial).exists()


def test_a_folder_that_was_removed_meanwhile_is_no_trouble(tmp_path: Path) -> None:
    store = Store(str(tmp_path), "waves")
    store.remove(own(1, 1).text)
    folder = planted(tmp_path, 1, 1)
    trash = folder.with_name(".trash-" + folder.name)
    trash.mkdir()
    (trash / "left").write_bytes(b"over")
    store.remove(folder.name)
    assert list((tmp_path / "waves").iterdir()) == []


def test_at_an_object_store_the_manifest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("memory://going", "waves")
    for file in DATA.keys() - {"__1_0.distcp"} | {FILE_NAME}:
        with store.files.open_to_write(f"{own(1, 1).text}/{file}") as stream:
            stream.write(b"abc")
    left: list[dict[str, int]] = []
    monkeypatch.setattr(store.files, "remove_folder", lambda folder: left.append(store.files.sizes(folder)))
    assert [name.step for name in store.published()] == [1]
    store.remove(own(1, 1).text)
    assert left == [{".metadata": 3, "__0_0.distcp": 3}]
    assert store.published() == []


def test_a_place_that_is_no_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"listing saves at .*/file/waves failed: Not a directory"):
        Store(str(tmp_path / "file"), "waves").listed()


@pytest.mark.parametrize("job", ["", "..", "../x", "a/b", ".hidden"])
def test_a_job_name_is_no_path(tmp_path: Path, job: str) -> None:
    with pytest.raises(UserError, match="job name"):
        Store(str(tmp_path), job)


def test_an_unknown_scheme_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match="backstop url nonsense://a"):
        Store("nonsense://a", "waves")


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UserError, match=r"install headway\[gcs\]"):
        Store("gs://bucket", "waves")


def broken(store: Store, error: OSError, *where: str) -> None:
    """Let operations on these paths fail, "" being the folder of the job."""

    def meet(doing: str, path: str) -> None:
        if path in where:
            raise error

    store.files = TroubledFiles(store, meet)  # type: ignore[assignment]


EIO = OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("error", [EIO, PermissionError(errno.EACCES, "Permission denied")])
@pytest.mark.parametrize("what", [f"/{FILE_NAME}", ""])
def test_one_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, error: OSError, what: str) -> None:
    newest, older = planted(tmp_path, 2, 2).name, planted(tmp_path, 1, 1).name
    store = Store(str(tmp_path), "waves")
    broken(store, error, newest + what)
    torn, save = store.listed()
    assert torn == Torn(folder=newest, why=f"it cannot be read: {error.strerror}", unreadable=True)
    assert isinstance(save, Save)
    assert [name.text for name in store.published()] == ([older] if what == "" else [newest, older])


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), OSError("what?")])
def test_trouble_of_the_place_is_not_that_of_a_save(tmp_path: Path, error: OSError) -> None:
    folder = planted(tmp_path, 1, 1).name
    store = Store(str(tmp_path), "waves")
    (save,) = store.listed()
    assert isinstance(save, Save)
    broken(store, error, f"{folder}/{FILE_NAME}", f"{folder}/.metadata")
    with pytest.raises(StoreError, match=f"looking at {folder}"):
        store.listed()
    with pytest.raises(StoreError, match=f"reading {folder}/.metadata"):
        store.verify(save)


def test_a_place_that_goes_while_it_is_read_is_told(tmp_path: Path) -> None:
    folder = planted(tmp_path, 1, 1).name
    store = Store(str(tmp_path), "waves")
    names = store.files.names("")
    broken(store, EIO, "", f"{folder}/{FILE_NAME}")
    store.folders = lambda: names  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="Input/output error"):
        store.listed()


def test_a_data_file_that_cannot_be_read_is_a_problem_of_its_save(tmp_path: Path) -> None:
    folder = planted(tmp_path, 1, 1).name
    store = Store(str(tmp_path), "waves")
    broken(store, EIO, f"{folder}/__0_0.distcp")
    save = only(store)
    assert isinstance(save, Save)
    assert store.verify(save) == [f"{folder}/__0_0.distcp cannot be read: Input/output error"]


@pytest.mark.parametrize("lost", [".metadata", "data"])
def test_saves_whose_files_are_gone_do_not_count_in_retention(tmp_path: Path, lost: str) -> None:
    for step in range(1, 5):
        planted(tmp_path, step, step)
    for step in (2, 3):
        for path in (tmp_path / "waves" / own(step, step).text).glob("*.distcp" if lost == "data" else lost):
            path.unlink()
    store = Store(str(tmp_path), "waves")
    assert [name.step for name in store.published()] == [4, 1]
    assert store.purge(own(4, 4), keep=2).folders == (own(2, 2).text, own(3, 3).text)
    assert [each.name.step for each in store.listed() if isinstance(each, Save)] == [4, 1]


def test_a_writer_knows_when_a_save_of_its_own_is_torn(tmp_path: Path) -> None:
    store = Store(str(tmp_path), "waves")
    for step in range(1, 5):
        planted(tmp_path, step, 1)
    for save in store.listed():
        assert isinstance(save, Save)
        store.note_written(save.manifest)
    with open(tmp_path / "waves" / own(3, 1).text / "__0_0.distcp", "ab") as file:
        file.truncate(100)
    assert [name.step for name in store.published()] == [4, 2, 1]
    assert store.purge(own(4, 1), keep=2).folders == (own(1, 1).text, own(3, 1).text)
    assert store._written.keys() == {own(step, 1).text for step in (1, 2, 3, 4)}
    store.purge(own(4, 1), keep=2)
    assert store._written.keys() == {own(step, 1).text for step in (2, 4)}


def test_purge_goes_on_past_what_it_cannot_remove_and_leaves_what_it_cannot_see(tmp_path: Path) -> None:
    for step in range(1, 6):
        planted(tmp_path, step, step)
    store = Store(str(tmp_path), "waves")
    stuck, unseen = own(1, 1).text, own(3, 3).text

    def meet(doing: str, path: str) -> None:
        if (doing, path) in (("rename_folder", stuck), ("sizes", unseen)):
            raise PermissionError(errno.EACCES, "Permission denied")

    store.files = TroubledFiles(store, meet)  # type: ignore[assignment]
    purged = store.purge(own(5, 5), keep=1)
    assert purged.folders == (own(2, 2).text, own(4, 4).text)
    assert purged.problem is not None
    assert purged.problem.startswith(f"removing {stuck} at ")
    assert sorted(path.name for path in (tmp_path / "waves").iterdir()) == [stuck, unseen, own(5, 5).text]


def test_a_place_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    store, healed = Store(str(tmp_path), "waves"), threading.Event()
    store.files = TroubledFiles(store, lambda doing, path: healed.wait() and None)  # type: ignore[assignment]
    with pytest.raises(StoreError, match=r"listing saves at .* failed: it was not done within 0.05 s"):
        store.bounded("listing saves", Deadline(0.05), store.published)
    healed.set()
    assert store.bounded("listing saves", Deadline(60), store.published) == []
    assert store.bounded("listing saves", None, store.published) == []
