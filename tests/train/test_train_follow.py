"""Following files that grow: whole lines, once each, however they arrive."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from train.cluster.follow import GroupProgress, LineFollower


def test_no_file_yet(tmp_path: Path) -> None:
    assert LineFollower(tmp_path / "none").new_lines() == []


@given(st.lists(st.integers(), max_size=20), st.lists(st.integers(1, 30), max_size=40))
def test_each_line_once_however_the_bytes_arrive(numbers: list[int], cuts: list[int]) -> None:
    text = "".join(json.dumps({"n": number}) + "\n" for number in numbers).encode()
    with TemporaryDirectory() as folder:
        path = Path(folder, "lines")
        follower = LineFollower(path)
        seen: list[int] = []
        with path.open("ab", buffering=0) as file:
            for cut in [*cuts, len(text)]:
                file.write(text[:cut])
                text = text[cut:]
                seen += [entry["n"] for entry in follower.new_lines()]
    assert seen == numbers


def test_torn_lines_and_strangers_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1}\n{"n": \n[2]\n\n\xff\n{"n": 3}\n{"n": 4')
    assert [entry["n"] for entry in LineFollower(path).new_lines()] == [1, 3]


def commit(step: int, t: float, outcome: str = "committed") -> str:
    return json.dumps({"t": t, "step": step, "outcome": outcome, "loss": 5.0 - step}) + "\n"


def test_progress_of_a_group(tmp_path: Path) -> None:
    path = tmp_path / "group-0.jsonl"
    progress = GroupProgress(path)
    progress.look()
    assert (progress.commits, progress.step, progress.loss, progress.heard_t) == (0, 0, None, None)
    path.write_text(commit(0, 10.0) + commit(1, 11.0) + commit(2, 11.5, "discarded"))
    progress.look()
    assert (progress.commits, progress.step, progress.loss, progress.heard_t) == (2, 2, 4.0, 11.5)


def test_a_save_that_was_read_sets_the_step_back_until_the_next_commit(tmp_path: Path) -> None:
    path = tmp_path / "group-0.jsonl"
    progress = GroupProgress(path)
    path.write_text(commit(0, 1.0) + commit(1, 2.0) + commit(2, 3.0))
    progress.look()
    progress.mark_restored(2, 2.5)  # of before that commit
    assert progress.step == 3
    progress.mark_restored(2, 4.0)
    assert progress.step == 2
    path.write_text(path.read_text() + commit(2, 5.0))
    progress.look()
    assert progress.step == 3


def test_a_group_that_took_a_restored_state_from_others_is_where_it_last_committed(tmp_path: Path) -> None:
    path = tmp_path / "group-0.jsonl"
    progress = GroupProgress(path)
    path.write_text(commit(50, 1.0) + commit(42, 2.0))
    progress.look()
    assert progress.step == 43


def test_pace_is_that_of_steps_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "group-0.jsonl"
    progress = GroupProgress(path)
    path.write_text(commit(0, 0.0))
    progress.look()
    assert progress.step_s is None
    # Away for 60 s between step 2 and step 50: says nothing about the pace.
    path.write_text(commit(0, 0.0) + commit(1, 2.0) + commit(2, 4.0) + commit(50, 64.0) + commit(51, 66.0))
    progress.look()
    assert progress.step_s == 2.0
