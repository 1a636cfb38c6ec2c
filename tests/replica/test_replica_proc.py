"""What /proc says of a process: its parent and its state, whatever its name; the dead are left out."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from replica.proc import age_s, process, processes


def test_a_child_is_found_with_its_parent_and_state() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = processes()
        assert found[child.pid].parent == os.getpid()
        assert found[os.getpid()].state == "R"
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        stopped = process(child.pid)
        assert stopped is not None
        assert stopped.state == "T"
        child.kill()


def test_a_name_with_brackets_and_spaces_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "600"]) as child:
        found = process(child.pid)
        child.kill()
    assert found is not None
    assert found.parent == os.getpid()


def test_a_zombie_is_dead() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process(child.pid) is None
        assert child.pid not in processes()


def test_a_process_knows_its_age() -> None:
    began_s = time.monotonic()
    code = "from replica.proc import age_s; print(age_s())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0.0 < float(told) <= time.monotonic() - began_s + 0.02
    assert age_s() > float(told)
