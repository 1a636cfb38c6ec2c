"""Stores that are full, read-only, broken or frozen: no rank is held up, and what was published stays."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from backstop_processes import Group, group_of
from backstop_rank import JOB

from replica.backstop.store import Save, Store

BIG = [("buffer.big", torch.uint8, (3 << 20,)), ("parameter.big", torch.uint8, (3 << 20,))]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A folder that may be mounted upon."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder = tmp_path / "mounted"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


def mounted(*words: str) -> None:
    done = subprocess.run(["mount", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this machine does not let a file system be mounted: {done.stderr.strip()}")


def complete(url: str) -> list[int]:
    """Steps of the complete saves, every byte of them verified."""
    store = Store(url, JOB)
    found = [each for each in store.listed() if isinstance(each, Save)]
    assert [store.verify(save) for save in found] == [[]] * len(found)
    return [save.name.step for save in found]


def test_a_full_disk_is_told_and_nothing_is_left_of_it(rank_processes: Group, mount: Path) -> None:
    mounted("-t", "tmpfs", "-o", "size=5m", "tmpfs", str(mount))
    assert "bytes" in rank_processes.ask("save", str(mount), step=1, quorum_id=1, of=2)[0]
    answers = rank_processes.ask("save", str(mount), step=2, quorum_id=1, of=2, kinds=BIG)
    assert [answer["error"] for answer in answers] == ["SaveFailedError"] * 2
    assert "No space left on device" in answers[0]["text"]
    assert "make room" in answers[0]["text"]
    assert answers[0]["text"] == answers[1]["text"]
    assert complete(str(mount)) == [1]
    assert len(list((mount / JOB).iterdir())) == 1
    assert "bytes" in rank_processes.ask("save", str(mount), step=3, quorum_id=1, of=2)[0]


def test_a_read_only_folder_is_told(rank_processes: Group, mount: Path) -> None:
    mounted("-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(mount))
    answers = rank_processes.ask("save", str(mount), step=1, quorum_id=1, of=2)
    assert [answer["error"] for answer in answers] == ["SaveFailedError"] * 2
    assert "Read-only file system" in answers[1]["text"]
    assert str(mount) in answers[1]["text"]


def test_a_path_below_a_file_is_told(rank_processes: Group, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (answer,) = rank_processes.ask("save", str(tmp_path / "file"), step=1, quorum_id=1, of=1)
    assert answer["error"] == "SaveFailedError"
    assert "Not a directory" in answer["text"]


def test_a_store_that_fails_on_one_rank_fails_on_all(rank_processes: Group, tmp_path: Path) -> None:
    url = f"trouble://{tmp_path}"
    assert "bytes" in rank_processes.ask("save", url, step=1, quorum_id=1, of=3, keep=1)[0]
    rank_processes.ranks[1].ask("trouble", fail_after_bytes=2000)
    answers = rank_processes.ask("save", url, step=2, quorum_id=1, of=3, keep=1)
    rank_processes.ranks[1].ask("trouble")
    assert [answer["error"] for answer in answers] == ["SaveFailedError"] * 3
    assert "rank 1: " in answers[0]["text"]
    assert "Connection reset by peer" in answers[2]["text"]
    assert complete(str(tmp_path)) == [1]
    assert len(list((tmp_path / JOB).iterdir())) == 1
    assert "bytes" in rank_processes.ask("save", url, step=3, quorum_id=1, of=3, keep=1)[0]
    assert complete(str(tmp_path)) == [3]


def test_a_store_that_loses_what_was_written_is_found_out(rank_processes: Group, tmp_path: Path) -> None:
    rank_processes.ranks[1].ask("trouble", loses=True)
    answers = rank_processes.ask("save", f"trouble://{tmp_path}", step=1, quorum_id=1, of=2)
    rank_processes.ranks[1].ask("trouble")
    assert [answer["error"] for answer in answers] == ["SaveFailedError"] * 2
    assert "__1_0.distcp was written and is not there" in answers[1]["text"]
    assert list((tmp_path / JOB).iterdir()) == []


@pytest.mark.parametrize(("rank", "hang_in"), [(1, "write"), (0, "open"), (0, "ls")])
def test_a_store_that_hangs_holds_nobody_up(tmp_path: Path, rank: int, hang_in: str) -> None:
    url = f"trouble://{tmp_path}"
    with group_of(2) as group:
        assert "bytes" in group.ask("save", url, step=1, quorum_id=1, of=2)[0]
        group.ranks[rank].ask("trouble", hang_in=hang_in)
        answers = group.ask("save", url, step=2, quorum_id=1, of=2, timeout_s=1.0)
        left = group.ask("io_threads")
        group.ask("trouble")
        again = group.ask("save", url, step=3, quorum_id=1, of=2)
    assert [answer["error"] for answer in answers] == ["SaveFailedError"] * 2
    assert "not done within 1 s" in answers[1]["text"]
    assert all(1.0 <= answer["seconds"] < 10 for answer in answers)
    assert left[rank]
    assert all(daemon for _, daemon in left[rank])
    assert left[1 - rank] == []
    assert "bytes" in again[0]
    assert complete(str(tmp_path)) == [3, 1]


def test_a_rank_that_dies_ends_the_save_of_the_others(tmp_path: Path) -> None:
    with group_of(2) as group:
        for rank in group.ranks:
            rank.ask("trouble", hang_in="open" if rank is group.ranks[1] else "")
        for rank in group.ranks:
            rank.tell("save", f"trouble://{tmp_path}", step=1, quorum_id=1, of=2)
        group.ranks[1].process.kill()
        answer = group.ranks[0].answer()
    assert answer["error"] == "SaveFailedError"
    assert "a rank of this group left" in answer["text"]
    assert complete(str(tmp_path)) == []
