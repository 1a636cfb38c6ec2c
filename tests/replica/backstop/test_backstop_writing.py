"""Saves are written by real processes, into real folders."""

import errno
import signal
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from backstop_kills import kill_writers
from backstop_processes import Group, group_of
from backstop_rank import JOB, facts
from backstop_states import KINDS, bytes_of, full
from backstop_stores import TroubledFiles

from replica.backstop.deadline import Deadline
from replica.backstop.manifest import FILE_NAME
from replica.backstop.names import SaveName
from replica.backstop.store import Save, Store, Torn
from replica.backstop.writing import SaveFailedError, Written, write_save
from replica.mesh import Ranks


def saves(folder: Path) -> list[Save]:
    """The complete saves below a folder, the newest first."""
    return [each for each in Store(str(folder), JOB).listed() if isinstance(each, Save)]


@pytest.mark.parametrize("writers", [1, 2, 3])
def test_a_save_can_be_loaded_by_any_number_of_ranks(
    rank_processes: Group, tmp_path: Path, writers: int
) -> None:
    answers = rank_processes.ask("save", str(tmp_path), step=writers, quorum_id=1, of=writers)
    assert all("error" not in answer for answer in answers), answers
    (save,) = Store(str(tmp_path), JOB).listed()
    assert isinstance(save, Save)
    assert Store(str(tmp_path), JOB).verify(save) == []
    for readers in (1, 2, 3):
        assert rank_processes.ask("load", str(tmp_path), folder=save.name.text, of=readers) == [[]] * readers


def test_torch_itself_can_read_a_save(rank_processes: Group, tmp_path: Path) -> None:
    rank_processes.ask("save", str(tmp_path), step=5, quorum_id=1, of=3)
    (save,) = saves(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = {name: torch.zeros(shape).to(dtype) for name, dtype, shape in KINDS}
        dcp.load(wanted, checkpoint_id=tmp_path / JOB / save.name.text, no_dist=True)
    expected = {name: full(name, dtype, shape, seed=5) for name, dtype, shape in KINDS}
    assert bytes_of(wanted) == bytes_of(expected)


def test_the_manifest_tells_what_was_saved(rank_processes: Group, tmp_path: Path) -> None:
    answers = rank_processes.ask("save", str(tmp_path), step=6, quorum_id=2, of=2)
    (save,) = saves(tmp_path)
    folder = tmp_path / JOB / save.name.text
    assert save.manifest.facts == facts("00000002", 2)
    assert {"headway", "torch", "python"} == set(save.manifest.versions)
    assert {file.name for file in save.manifest.files} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert save.manifest.bytes == sum(f.stat().st_size for f in folder.iterdir() if f.name != FILE_NAME)
    assert [answer["bytes"] for answer in answers] == [save.manifest.bytes] * 2


def test_replicated_tensors_are_written_once(rank_processes: Group, tmp_path: Path) -> None:
    big = [("buffer.big", torch.uint8, (1 << 20,))]
    rank_processes.ask("save", str(tmp_path), step=1, quorum_id=1, of=3, kinds=big)
    assert saves(tmp_path)[0].manifest.bytes < 1.1 * (1 << 20)


def test_nothing_is_opened_for_reading(tmp_path: Path) -> None:
    with group_of(2) as group:
        group.ask("watch_opens", str(tmp_path))
        for step in range(1, 6):
            group.ask("save", str(tmp_path), step=step, quorum_id=1, of=2, keep=2)
        opened = [each for answer in group.ask("opens") for each in answer]
    assert len([path for path, how in opened if how == "write"]) == 5 * 4
    assert [path for path, how in opened if how == "read"] == []


def test_only_the_newest_saves_are_kept(rank_processes: Group, tmp_path: Path) -> None:
    for step in range(1, 6):
        answers = rank_processes.ask("save", str(tmp_path), step=step, quorum_id=1, of=1, keep=2)
        assert len(answers[0]["purged"]) == (step > 2)
    assert [save.name.step for save in saves(tmp_path)] == [5, 4]
    assert len(list((tmp_path / JOB).iterdir())) == 2


@pytest.mark.parametrize("number", range(9))
def test_a_writer_killed_at_any_operation_leaves_the_earlier_saves(tmp_path: Path, number: int) -> None:
    with group_of(1) as group:
        group.ask("save", str(tmp_path), step=1, quorum_id=1)
        group.ranks[0].tell(
            "save", str(tmp_path), step=2, quorum_id=1, keep=1, signal_at=(number, signal.SIGKILL)
        )
        with pytest.raises(EOFError):
            group.ranks[0].answer()
    listed = Store(str(tmp_path), JOB).listed()
    newest = next(each for each in listed if isinstance(each, Save))
    assert Store(str(tmp_path), JOB).verify(newest) == []
    assert newest.name.step == (2 if number > 7 else 1), number
    assert all(each.why == "its writing was not finished" for each in listed if isinstance(each, Torn))
    with group_of(1) as group:
        assert group.ask("load", str(tmp_path), folder=newest.name.text) == [[]]
        group.ask("save", str(tmp_path), step=3, quorum_id=2, keep=1)
    assert [path.name for path in (tmp_path / JOB).iterdir()] == [f"step-{3:012d}-quorum-{2:012d}-00000002"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_writers_killed_at_random_moments_leave_a_complete_save(tmp_path: Path, ranks: int) -> None:
    kill_writers(tmp_path, ranks=ranks, kills=4)


@pytest.mark.parametrize("number", range(1, 9))
def test_a_writer_paused_at_any_operation_changes_nothing_that_is_newer(tmp_path: Path, number: int) -> None:
    with group_of(1) as old, group_of(1) as new:
        old.ask("save", str(tmp_path), step=1, quorum_id=1)
        old.ranks[0].tell(
            "save", str(tmp_path), step=2, quorum_id=1, keep=1, signal_at=(number, signal.SIGSTOP)
        )
        old.ranks[0].wait_stopped()
        (published,) = new.ask("save", str(tmp_path), step=2, quorum_id=5, keep=3)
        before = snapshot(tmp_path / JOB / f"step-{2:012d}-quorum-{5:012d}-00000005")
        old.ranks[0].signal(signal.SIGCONT)
        answer = old.ranks[0].answer()
    assert "bytes" in published
    assert answer["error"] == "Fenced", answer
    assert f"step-{2:012d}-quorum-{5:012d}" in answer["text"]
    assert snapshot(tmp_path / JOB / f"step-{2:012d}-quorum-{5:012d}-00000005") == before
    assert [save.name.order for save in saves(tmp_path)][:1] == [(5, 2)]
    assert not [path for path in (tmp_path / JOB).iterdir() if path.name.startswith(".")]


def test_a_group_of_an_older_quorum_gives_up_on_all_ranks(rank_processes: Group, tmp_path: Path) -> None:
    rank_processes.ask("save", str(tmp_path), step=3, quorum_id=9, of=1, keep=1)
    answers = rank_processes.ask("save", str(tmp_path), step=4, quorum_id=8, of=3, keep=1)
    assert [answer["error"] for answer in answers] == ["Fenced"] * 3
    assert [path.name for path in (tmp_path / JOB).iterdir()] == [f"step-{3:012d}-quorum-{9:012d}-00000009"]


@pytest.mark.parametrize("url", ["{}", "memory://{}"])
def test_a_name_is_given_once(rank_processes: Group, tmp_path: Path, url: str) -> None:
    rank, said_twice = rank_processes.ranks[0], {"step": 3, "quorum_id": 1}
    rank.ask("save", url.format(tmp_path), **said_twice)
    (folder, _) = rank.ask("listed", url.format(tmp_path))[0]
    answer = rank.ask("save", url.format(tmp_path), **said_twice)
    assert answer["error"] == "SaveFailedError"
    assert "exists" in answer["text"] or "not empty" in answer["text"]
    assert rank.ask("listed", url.format(tmp_path)) == [(folder, "")]
    assert rank.ask("verify", url.format(tmp_path), folder) == []


def test_partial_saves_that_may_be_in_flight_stay(rank_processes: Group, tmp_path: Path) -> None:
    rank_processes.ask("save", str(tmp_path), step=1, quorum_id=3, of=1)
    folders = {
        ".partial-step-000000000009-quorum-000000000004-000000aa": True,  # of this quorum: by another
        ".partial-step-000000000009-quorum-000000000005-000000bb": True,  # of a quorum to come
        ".partial-step-000000000002-quorum-000000000004-00000004": False,  # ours, and given up
        ".partial-step-000000000002-quorum-000000000003-000000cc": False,  # of an older quorum
        "step-000000000002-quorum-000000000003-000000dd": False,  # torn, of an older quorum
        "step-000000000002-quorum-000000000004-000000ee": True,  # as an object store shows what is in flight
        ".trash-step-000000000001-quorum-000000000001-000000ff": False,
        "notes-of-a-person": True,
    }
    for folder in folders:
        (tmp_path / JOB / folder).mkdir()
        (tmp_path / JOB / folder / "__0_0.distcp").write_bytes(b"abc")
    (answer,) = rank_processes.ask("save", str(tmp_path), step=9, quorum_id=4, of=1)
    there = {path.name for path in (tmp_path / JOB).iterdir()}
    assert {folder: folder in there for folder in folders} == folders
    assert set(answer["purged"]) == {f for f, stays in folders.items() if not stays and "trash" not in f}


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and times of all files."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def write(store: Store, step: int, *, keep: int = 3, timeout_s: float = 30.0) -> Written:
    """Save something from this process."""
    world = dist.group.WORLD
    assert world is not None
    return write_save(
        store,
        SaveName(step=step, quorum_id=1, incarnation="00000001"),
        facts("00000001", 1),
        {"parameter.one": torch.ones(3)},
        process_group=world,
        keep=keep,
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize("url", ["{}", "trouble://{}"])
def test_a_save_that_was_reported_as_failed_is_not_published_later(
    ranks: Ranks, tmp_path: Path, url: str
) -> None:
    store, healed = Store(url.format(tmp_path), JOB), threading.Event()
    hung: list[threading.Thread] = []

    def meet(doing: str, path: str) -> None:
        if doing == "sizes" and not hung:  # the first look of the thread that publishes
            hung.append(threading.current_thread())
            healed.wait()
        elif doing == "names" and hung and threading.current_thread() not in hung:
            healed.set()  # while it is cleared up
            hung[0].join(30.0)

    store.files = TroubledFiles(store, meet)  # type: ignore[assignment]
    if "://" in url:  # there, the making of a folder asks for sizes, too
        store.files.make_folder = lambda path: (tmp_path / JOB / path).mkdir(parents=True)  # type: ignore[method-assign]
    with pytest.raises(SaveFailedError, match=r"not done within 0\.5 s"):
        write(store, 1, timeout_s=0.5)
    assert hung
    assert not hung[0].is_alive()
    assert list((tmp_path / JOB).iterdir()) == []


def test_a_save_that_is_not_shown_is_not_reported_as_written(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deadline, "passed", True)  # at the last moment: nobody has stopped waiting yet
    with pytest.raises(SaveFailedError, match="not done within 30 s"):
        write(Store(str(tmp_path), JOB), 1)
    assert list((tmp_path / JOB).iterdir()) == []


def test_a_save_whose_predecessors_cannot_be_removed_is_made_and_says_so(
    ranks: Ranks, tmp_path: Path
) -> None:
    store = Store(str(tmp_path), JOB)
    for step in (1, 2):
        assert write(store, step).purge_problem is None
    first = store.published()[-1].text

    def meet(doing: str, path: str) -> None:
        if (doing, path) == ("rename_folder", first):
            raise PermissionError(errno.EACCES, "Permission denied")

    store.files = TroubledFiles(store, meet)  # type: ignore[assignment]
    written = write(store, 3, keep=1)
    assert [SaveName.parse(folder).step for folder in written.purged] == [2]  # type: ignore[union-attr]
    assert written.purge_problem is not None
    assert f"removing {first}" in written.purge_problem
    assert [name.step for name in store.published()] == [3, 1]


def test_a_save_that_was_damaged_since_does_not_count_in_retention(ranks: Ranks, tmp_path: Path) -> None:
    store = Store(str(tmp_path), JOB)
    for step in (1, 2):
        write(store, step)
    (tmp_path / JOB / store.published()[0].text / "__0_0.distcp").write_bytes(b"abc")
    written = write(store, 3, keep=2)
    assert [SaveName.parse(folder).step for folder in written.purged] == [2]  # type: ignore[union-attr]
    assert [save.name.step for save in saves(tmp_path)] == [3, 1]
