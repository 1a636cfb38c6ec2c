"""How a training function ends, told by exit code: in real processes, since `run` ends its own."""

import subprocess
import sys
from pathlib import Path

import pytest

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


def end(body: str, rank: str | None = None) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, threading, time\n"
        "from replica.errors import RestartError, UserError\n"
        "from replica.exit import run\n"
        f"def main():\n    print('hello')\n    {body}\n"
        "run(main)\n"
    )
    environment = {"PYTHONPATH": str(ROOT)} | ({} if rank is None else {"RANK": rank})
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", ENDINGS)
def test_exit_codes_and_nothing_is_lost_on_the_way_out(name: str) -> None:
    body, code = ENDINGS[name]
    ended = end(body)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == "hello\n"


@pytest.mark.parametrize(("rank", "told"), [(None, True), ("0", True), ("1", False)])
def test_a_mistake_of_the_user_is_one_sentence_told_once_per_group(rank: str | None, told: bool) -> None:
    ended = end(ENDINGS["user"][0], rank)
    assert ended.returncode == 4
    assert ended.stderr == ("error: steps is 0: it must be at least 1\n" if told else "")


def test_a_restart_says_why_in_one_line() -> None:
    assert end(ENDINGS["restart"][0]).stderr == "restart needed: a rank is gone\n"


def test_the_text_of_sys_exit_is_printed() -> None:
    assert end(ENDINGS["exit-text"][0]).stderr == "no data at /x\n"


def test_a_bug_leaves_its_traceback() -> None:
    stderr = end(ENDINGS["bug"][0]).stderr
    assert "Traceback" in stderr
    assert "KeyError: 'surprise'" in stderr
