"""Workers beside the agent: a stopped one is killed only when a sibling has gone; SIGTERM is handed on."""

import os
import signal
import subprocess
import sys

from replica.workers import FrozenWorkers, children_of


def test_a_stopped_worker_of_a_whole_group_is_left_alone() -> None:
    frozen = FrozenWorkers(frozen_s=5.0)
    for now_s in range(100):
        assert frozen.to_kill({1: "S", 2: "T"}, float(now_s)) == []


def test_a_stopped_worker_is_killed_some_time_after_a_sibling_has_gone() -> None:
    frozen = FrozenWorkers(frozen_s=5.0)
    assert frozen.to_kill({1: "S", 2: "S", 3: "R"}, 0.0) == []
    assert frozen.to_kill({2: "T", 3: "R"}, 1.0) == []
    assert frozen.to_kill({2: "T", 3: "R"}, 5.9) == []
    assert frozen.to_kill({2: "T", 3: "R"}, 6.0) == [2]


def test_one_that_goes_on_is_forgiven_and_a_new_group_starts_anew() -> None:
    frozen = FrozenWorkers(frozen_s=5.0)
    frozen.to_kill({1: "S", 2: "S"}, 0.0)
    frozen.to_kill({2: "T"}, 1.0)
    assert frozen.to_kill({2: "S"}, 7.0) == []
    assert frozen.to_kill({2: "T"}, 8.0) == []
    assert frozen.to_kill({}, 9.0) == []
    assert frozen.to_kill({7: "T"}, 20.0) == []
    assert frozen.to_kill({7: "T"}, 30.0) == []


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
