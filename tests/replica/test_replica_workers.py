"""Workers beside the agent: they are found, and SIGTERM is handed on to them."""

import os
import signal
import subprocess
import sys

from replica.workers import children_of


def test_children_are_found_with_their_state() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children_of(os.getpid())
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert children_of(os.getpid())[child.pid] == "T"
        child.kill()


PARENT = """
import subprocess, sys
from replica.workers import forward_sigterm

forward_sigterm(1.0)
ready = "print('up', flush=True);"
leaves = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0));" + ready + "signal.pause()"
stays = "import signal; signal.signal(15, signal.SIG_IGN);" + ready + "input()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
children = [subprocess.Popen([sys.executable, "-c", code], **pipes) for code in (leaves, stays)]
for child in children:
    child.stdout.readline()
print("up", flush=True)
print([child.wait() for child in children], flush=True)
"""


def test_sigterm_is_handed_on_and_after_the_grace_the_rest_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.stdout.readline() == "[0, -9]\n"
        assert process.wait(timeout=20) == 0
