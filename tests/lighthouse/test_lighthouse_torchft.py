"""torchft itself against our server: its own tests of a lighthouse, and its Manager in two groups."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_lighthouse_process import Server

from lighthouse.client import status

HERE = Path(__file__).parent


def run(*command: str, **environment: str) -> str:
    """Standard output of a Python child that must succeed."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.e2e
def test_torchfts_own_lighthouse_tests_pass(tmp_path: Path) -> None:
    torchft = find_spec("torchft")
    assert torchft is not None
    assert torchft.origin is not None
    tests = Path(torchft.origin).with_name("lighthouse_test.py")
    plugin = ("-p", "torchft_swap", "-p", "no:cacheprovider")
    count = tmp_path / "count"
    environment = {"PYTHONPATH": str(HERE), "HEADWAY_SWAP_COUNT": str(count)}
    output = run("-m", "pytest", "-q", "-c", os.devnull, *plugin, str(tests), **environment)
    assert "4 passed" in output
    assert count.read_text() == "5"


@pytest.fixture
def server() -> Iterator[Server]:
    ports = ("--bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0", "--state-dir", "none")
    rules = ("--expected-groups", "2", "--min-replicas", "1", "--heartbeat-timeout-ms", "2000")
    running = Server(*ports, *rules)
    yield running
    running.process.terminate()
    running.process.communicate(timeout=10)


@pytest.mark.e2e
@pytest.mark.parametrize(("names", "left"), [(("job/0", "job/1"), "group 0"), (("ddp_0", "ddp_1"), "ddp_0")])
def test_two_managers_average_and_one_goes_on_alone(
    server: Server, names: tuple[str, str], left: str
) -> None:
    steps = json.loads(run(str(HERE / "two_managers.py"), server.address, *names))
    averages = [[group["average"] for group in steps[name]] for name in ("first", "second")]
    assert averages == [[2.0, 2.0], [3.0, 3.0]]
    together = {group["quorum_id"] for group in steps["first"] + steps["second"]}
    assert len(together) == 1
    assert all(group["committed"] for group in steps["first"] + steps["second"])
    assert (steps["alone"]["average"], steps["alone"]["committed"]) == (5.0, True)
    assert steps["alone"]["quorum_id"] > max(together)
    (job,) = status(server.address)["jobs"]
    assert job["quorum"]["members"] == [left]
