"""One child process: what is told of its end, in its own words."""

import subprocess
import sys
from pathlib import Path

import pytest

from train.cluster.children import Child


def ended(tmp_path: Path, program: str) -> Child:
    child = Child(name="child", mark="mark", log=tmp_path / "child.log")
    child.start([sys.executable, "-S", "-c", program], {})
    child.reap(timeout_s=20.0)
    return child


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("pass", "it wrote nothing."),
        ("print('one'); print('two'); print()", "two"),
        (
            "print('error: no such file: name another.'); print('the group ended')",
            "no such file: name another.",
        ),
        ("raise ValueError('too much')", "ValueError: too much"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("print('restart needed: no answer'); print('the group ended')", "no answer"),
        ("print('KeyError: 1'); print('restart needed: no answer')", "KeyError: 1"),
        ("print('error: mend it'); raise ValueError", "mend it"),
    ],
)
def test_the_sentence_of_an_end(tmp_path: Path, program: str, sentence: str) -> None:
    assert ended(tmp_path, program).last_sentence() == sentence


def test_only_the_latest_launch_counts(tmp_path: Path) -> None:
    child = ended(tmp_path, "print('error: the first')")
    child.start([sys.executable, "-S", "-c", "print('second')"], {})
    child.reap(timeout_s=20.0)
    assert child.last_sentence() == "second"
    assert child.launches == 2
    assert (tmp_path / "child.log").read_text() == "error: the first\nsecond\n"


def test_before_the_first_launch_there_is_nothing(tmp_path: Path) -> None:
    child = Child(name="child", mark="mark", log=tmp_path / "child.log")
    assert (child.pid, child.exit_code, child.running) == (None, None, False)
    assert child.last_sentence() == "it wrote nothing."


def test_a_process_that_does_not_end_is_told_by_the_limit(tmp_path: Path) -> None:
    child = Child(name="child", mark="mark", log=tmp_path / "child.log")
    child.start([sys.executable, "-S", "-c", "import time; time.sleep(600)"], {})
    with pytest.raises(subprocess.TimeoutExpired):
        child.reap(timeout_s=0.01)
    child.kill()
    assert not child.running
    assert child.exit_code == -9
