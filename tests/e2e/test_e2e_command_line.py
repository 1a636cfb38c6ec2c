"""The trainer's command line: mistakes cost one sentence, signals end everything."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]
ROOT = Path(__file__).parents[2]
# Where nobody listens.
GROUP_0 = ("--replica-group-id", "0", "--lighthouse-addr", "127.0.0.1:1")


def trainer(*arguments: str, ranks: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the trainer, below a launcher if ranks are given."""
    words = [] if ranks is None else ["-m", "replica.launch", "--nproc-per-node", str(ranks)]
    ours = ("TORCHFT", "HEADWAY", "REPLICA_GROUP_ID")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, *words, "-m", "train", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model.dmi", "64"], "model.dim"),
        (["--model.dim", "many"], "model.dim"),
        (["no-such-file.toml"], "no-such-file.toml"),
        (["--data.path", "/no/such/folder", "--lighthouse-addr", "127.0.0.1:1"], "/no/such/folder"),
        (["--lighthouse-addr", "nowhere"], "nowhere"),
        (["--replica-group-id", "two"], "two"),
        (["--steps", "0"], "steps"),
        (["--timeouts.transfer_s", "600"], "transfer_s = 600 and collective_s = 180 conflict"),
        ([*GROUP_0, "--token-file", "/no/token"], "/no/token"),
        (["--lighthouse-addr", "127.0.0.1:1"], "the number of this replica group is not given"),
        ([], "Lighthouse"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(arguments: list[str], told: str) -> None:
    result = trainer(*arguments)
    assert result.returncode == 4, result.stderr
    assert told in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_how_training_goes_is_told_on_standard_error() -> None:
    tiny = str(ROOT / "train" / "configs" / "tiny.toml")
    result = trainer(tiny, "--lighthouse-addr", "none", "--steps", "3", ranks=1)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert re.search(r"step 1 of 3: loss \d\.\d{4}, 1 group\n", result.stderr)
    assert re.search(r"step 3 of 3: loss \d\.\d{4}, \d+ tokens/s, 1 group\n", result.stderr)
    assert result.stderr.count("no --out: neither ledger nor events are written") == 1


def test_data_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("few words")
    result = trainer("--data.path", str(tmp_path / "short.txt"), "--lighthouse-addr", "127.0.0.1:1")
    assert result.returncode == 4
    assert "too short" in result.stderr


def test_the_launcher_passes_the_exit_code_on() -> None:
    result = trainer("--job.micro_batches", "3", "--lighthouse-addr", "127.0.0.1:1", ranks=2)
    assert result.returncode == 4, result.stderr
    assert result.stderr.count("micro_batches") == 1
    assert "Traceback" not in result.stderr


def test_an_unreachable_lighthouse_is_waited_for() -> None:
    result = trainer(*GROUP_0, "--lighthouse-wait", "1.5", ranks=1)
    assert result.returncode == 3, result.stderr
    assert "Lighthouse" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_ends_the_local_cluster(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "train.local", "--groups", "2", "--ranks", "1", "--steps", "100000"),
        *("--config", str(ROOT / "train" / "configs" / "tiny.toml"), "--out", str(tmp_path / "run")),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "training" in line:
                break
        process.send_signal(signal.SIGINT)
        process.wait(timeout=15)
    assert process.returncode == 128 + signal.SIGINT
    assert str(tmp_path) not in _command_lines()


def _command_lines() -> str:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(found)
