"""A file of JSON lines on a disk that is full or gone: counted, told once, and no line spoils the next."""

import resource
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from replica.json_lines import Gap, JsonLines

FULL = "No space left on device"


@contextmanager
def room_up_to(size: int) -> Iterator[None]:
    """As if the disk were full, for a file of this size: what is over it is cut off, and then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "below" / "some.jsonl"


def test_what_there_is_no_room_for_is_lost_and_the_next_line_is_whole(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(JsonLines(path, clock=lambda: 7.5)) as lines:
        assert lines.append({"n": 1})
        with room_up_to(12):
            assert not any(lines.append({"n": n}) for n in (2, 3, 4))
        assert path.read_text() == '{"n":1}\n{"n"'
        assert lines.append({"n": 5})
        assert lines.append({"n": 6})
        assert path.read_text() == '{"n":1}\n{"n"\n{"n":5}\n{"n":6}\n'
        assert lines.take_gap() == Gap(lines=3, since=7.5, reason="no space is left for a whole line")
        assert lines.take_gap() is None
    why = "no space is left for a whole line"
    assert caplog.messages == [
        f"{path} cannot be written ({why}): what belongs there is lost",
        f"{path} can be written again: lines lost: 3",
    ]


def test_a_gap_that_could_not_be_told_is_told_with_the_next(path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    times = iter((1.0, 2.0))
    with closing(JsonLines(path, clock=lambda: next(times))) as lines:
        assert not lines.append({})
        gap = lines.take_gap()
        assert gap == Gap(lines=1, since=1.0, reason=FULL)
        assert not lines.append({})
        lines.put_back(gap)
        assert lines.take_gap() == Gap(lines=2, since=1.0, reason=FULL)


def test_it_opens_on_a_full_disk_behind_a_torn_line(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"n')
    with room_up_to(3):
        lines = JsonLines(path)
    with closing(lines):
        assert path.read_text() == '{"n'
        lines.append({"n": 1})
    assert path.read_text() == '{"n\n{"n":1}\n'


def test_a_file_that_was_closed_is_not_taken_for_a_full_disk(path: Path) -> None:
    lines = JsonLines(path)
    lines.close()
    lines.close()
    with pytest.raises(OSError, match="descriptor"):
        lines.append({})
    assert lines.take_gap() is None


def test_a_folder_that_cannot_be_made_is_an_error(path: Path) -> None:
    path.parent.write_text("")
    with pytest.raises(OSError, match="exists"):
        JsonLines(path)


def test_losses_of_many_threads_are_all_counted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    with closing(JsonLines(path)) as lines:
        threads = [
            threading.Thread(target=lambda: [lines.append({"n": n}) for n in range(200)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gap = lines.take_gap()
    assert gap is not None
    assert gap.lines == 800
    assert len(caplog.messages) == 1


def test_a_line_of_another_writer_behind_a_torn_one_is_all_there(path: Path) -> None:
    with closing(JsonLines(path)) as one, closing(JsonLines(path)) as other:
        other.append({"n": 0})
        with room_up_to(12):
            one.append({"n": 1})
        other.append({"n": 2})
        one.append({"n": 3})
    assert path.read_text() == '{"n":0}\n{"n"{"n":2}\n{"n":3}\n'
