"""The launcher: exit codes that mean something, restarts only where they help, one sentence on failure."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from children import Children, children, hear
from hypothesis import given
from hypothesis import strategies as st

from replica import launch
from replica.errors import ExitCode, UserError
from replica.exit import LAUNCHER_PID_VARIABLE

CODES = st.lists(st.integers(-64, 255).filter(lambda code: code != 0), max_size=6)

# Each run appends a line; the exit code is the word of that line's number, the last one for ever.
WORKER = """
import os, sys
with open(sys.argv[1], "a") as runs:
    runs.write("x")
number = os.path.getsize(sys.argv[1])
codes = [int(word) for word in sys.argv[2:]]
code = codes[min(number, len(codes)) - 1]
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


# Each rank waits as long as it is told, and finds the same mistake then.
MISTAKEN = """
import os, sys, time
from replica.errors import UserError
from replica.exit import run
def main():
    time.sleep(float(sys.argv[1 + int(os.environ["RANK"])]))
    raise UserError("mend it")
run(main)
"""


@given(codes=CODES)
def test_one_rank_that_must_not_be_restarted_decides_for_all(codes: list[int]) -> None:
    code = launch.group_exit_code(codes)
    expected = ExitCode.FINISHED if not codes else ExitCode.DO_NOT_RESTART if 4 in codes else ExitCode.RESTART
    assert code is expected


def test_the_sentence_names_ranks_and_how_they_ended() -> None:
    assert (
        launch.describe({1: 4, 0: -9}) == "the group ended: rank 0 was killed by SIGKILL, "
        "rank 1 ended with exit code 4"
    )


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert launch.describe({0: -63}) == "the group ended: rank 0 was killed by signal 63"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The worker's script; what the launcher changes in the environment is undone."""
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    for name in (LAUNCHER_PID_VARIABLE, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    before = dict(os.environ)
    yield path
    os.environ.clear()
    os.environ.update(before)


def test_only_what_a_rank_has_handed_over_is_told(tmp_path: Path) -> None:
    (tmp_path / "told").touch()
    failures = [
        SimpleNamespace(exitcode=code, message=message, error_file=str(tmp_path / name))
        for code, message, name in (
            (4, "mend it", "told"),
            (4, "mend it", "told"),
            (4, "To enable traceback see: ...", "none"),
            (3, "a rank is gone", "told"),
        )
    ]
    assert launch.mistakes(failures) == ["mend it"]


def test_the_sentence_of_a_mistake_is_told_once_whichever_rank_ends_first(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(MISTAKEN)
    for waits in (("0", "60"), ("60", "0"), ("0", "0")):
        words = ["--nproc-per-node", "2", "--monitor-interval", "0.01", str(script), *waits]
        assert launch.main(words) == 4
        said = capfd.readouterr().err
        assert said.count("mend it") == 1
        assert "error: mend it\n" in said


@pytest.mark.parametrize(
    ("codes", "restarts", "expected", "runs"),
    [
        ([0], 3, 0, 1),
        ([4], 3, 4, 1),
        ([3], 0, 3, 1),
        ([3], 1, 3, 2),
        ([3, -9, 1, 0], 5, 0, 4),
        ([-9, 4], 5, 4, 2),
    ],
)
def test_a_real_group_is_restarted_only_where_that_can_help(
    script: Path, codes: Sequence[int], restarts: int, expected: int, runs: int
) -> None:
    log = script.with_name("runs")
    words = ["--max-restarts", str(restarts), "--monitor-interval", "0.01", str(script), str(log)]
    assert launch.main(words + [str(code) for code in codes]) == expected
    assert len(log.read_text()) == runs


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--bogus", "x.py"], "unrecognized arguments: --bogus"),
        ([], ""),
        (["--nproc-per-node", "1"], "required: training_script"),
        (["--nproc-per-node", "many", "SCRIPT"], "Unsupported nproc_per_node value: many"),
        (["--master-port", "99999", "SCRIPT"], "99999"),
        (["/no/such/script.py"], "there is no script /no/such/script.py"),
    ],
)
def test_unusable_arguments_are_one_sentence_and_code_4(
    script: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    replaced = [str(script) if word == "SCRIPT" else word for word in words]
    assert launch.main(replaced) == 4
    stderr = capsys.readouterr().err
    assert sentence in stderr
    assert "Traceback" not in stderr
    if words:
        assert stderr.startswith("error: ")
        assert stderr.count("\n") == 1


def test_help_is_not_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["--help"]) == 0
    assert "replica.launch" in capsys.readouterr().out


def test_a_port_in_use_is_one_sentence_and_code_4(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import DistNetworkError, run

    def in_use(arguments: object) -> None:
        raise DistNetworkError("name: EADDRINUSE, message: address already in use")

    monkeypatch.setattr(run, "run", in_use)
    with pytest.raises(UserError, match="the rendezvous port is in use"):
        launch.launch([str(script)])


WAITING_WORKER = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[Children, str]]:
    path = tmp_path / "waiting.py"
    path.write_text(WAITING_WORKER)
    with children() as started:
        yield started, str(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_ends_the_group_for_good(
    waiting: tuple[Children, str], number: signal.Signals
) -> None:
    started, path = waiting
    launcher = started.start("-m", "replica.launch", "--max-restarts", "5", path)
    assert hear(launcher) == "up"
    launcher.send_signal(number)
    stdout, stderr = launcher.communicate(timeout=30)
    assert launcher.returncode == 3
    assert stdout == ""  # no second "up"
    assert number.name in stderr
    assert "Traceback" not in stderr


# Rank 1 does not hear SIGTERM; once it is so far, rank 0 kills itself.
DEAF = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    open(sys.argv[1]).read()
    os.kill(os.getpid(), signal.SIGKILL)
open(sys.argv[1], "w").close()
if sys.argv[2] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""


@pytest.mark.parametrize("how", ["deaf", "stopped"])
@pytest.mark.timeout(60)
def test_siblings_of_a_dead_rank_that_do_not_hear_are_killed_soon(tmp_path: Path, how: str) -> None:
    path = tmp_path / "deaf.py"
    path.write_text(DEAF)
    os.mkfifo(tmp_path / "meet")
    with children() as started:
        words = ["-m", "replica.launch", "--nproc-per-node", "2", "--max-restarts", "0"]
        launcher = started.start(*words, str(path), str(tmp_path / "meet"), how)
        assert launcher.wait(timeout=25) == ExitCode.RESTART
