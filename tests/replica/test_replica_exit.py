"""How a training function ends, told by exit code: in real processes, since `run` ends its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from replica.exit import ERROR_FILE_VARIABLE, LAUNCHER_PID_VARIABLE

ROOT = Path(__file__).parents[2]

ENDINGS = {
    "done": ("pass", 0),
    "user": ("raise UserError('steps is 0: it must be at least 1')", 4),
    "restart": ("raise RestartError('a rank is gone')", 3),
    "bug": ("raise KeyError('surprise')", 3),
    "interrupt": ("raise KeyboardInterrupt", 130),
    "exit-nothing": ("sys.exit()", 0),
    "exit-zero": ("sys.exit(0)", 0),
    "exit-code": ("sys.exit(3)", 3),
    "exit-text": ("sys.exit('no data at /x')", 4),
    "thread": ("threading.Thread(target=time.sleep, args=(600,)).start()", 0),
}


def end(
    body: str, rank: str | None = None, output: IO[str] | int = subprocess.PIPE, **more: str
) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, threading, time\n"
        "from replica.errors import RestartError, UserError\n"
        "from replica.exit import run\n"
        f"def main():\n    print('hello')\n    {body}\n"
        "run(main)\n"
    )
    environment = {"PYTHONPATH": str(ROOT)} | more
    environment |= {} if rank is None else {"RANK": "5", "LOCAL_RANK": rank}
    command, to = [sys.executable, "-c", code], {"stdout": output, "stderr": output}
    return subprocess.run(command, env=environment, text=True, timeout=60, check=False, **to)


@pytest.mark.parametrize("name", ENDINGS)
def test_exit_codes_and_nothing_is_lost_on_the_way_out(name: str) -> None:
    body, code = ENDINGS[name]
    ended = end(body)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == "hello\n"


@pytest.mark.parametrize(("rank", "told"), [(None, True), ("0", True), ("1", False)])
def test_a_mistake_of_the_user_is_one_sentence_told_once_on_each_host(rank: str | None, told: bool) -> None:
    ended = end(ENDINGS["user"][0], rank)
    assert ended.returncode == 4
    assert ended.stderr == ("error: steps is 0: it must be at least 1\n" if told else "")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_mistake_is_handed_to_the_launcher_which_tells_it(tmp_path: Path, rank: str) -> None:
    told = tmp_path / "error.json"
    given = {ERROR_FILE_VARIABLE: str(told), LAUNCHER_PID_VARIABLE: "1"}
    ended = end(ENDINGS["user"][0], rank, **given)
    assert (ended.returncode, ended.stderr) == (4, "")
    assert json.loads(told.read_text())["message"] == "steps is 0: it must be at least 1"
    assert os.listdir(tmp_path) == ["error.json"]


def test_a_mistake_that_no_launcher_of_ours_tells_is_told(tmp_path: Path) -> None:
    nowhere = {ERROR_FILE_VARIABLE: str(tmp_path / "no" / "error.json"), LAUNCHER_PID_VARIABLE: "1"}
    plain = {ERROR_FILE_VARIABLE: str(tmp_path / "error.json")}
    for given in (nowhere, plain):
        ended = end(ENDINGS["user"][0], "0", **given)
        assert ended.stderr == "error: steps is 0: it must be at least 1\n"


def test_a_restart_says_why_in_one_line() -> None:
    assert end(ENDINGS["restart"][0]).stderr == "restart needed: a rank is gone\n"


@pytest.mark.parametrize("name", ENDINGS)
def test_an_output_without_room_changes_no_exit_code(name: str) -> None:
    body, code = ENDINGS[name]
    with open("/dev/full", "w") as full:
        assert end(body, output=full).returncode == code


def test_the_text_of_sys_exit_is_printed() -> None:
    assert end(ENDINGS["exit-text"][0]).stderr == "no data at /x\n"


def test_a_bug_leaves_its_traceback() -> None:
    stderr = end(ENDINGS["bug"][0]).stderr
    assert "Traceback" in stderr
    assert "KeyError: 'surprise'" in stderr
