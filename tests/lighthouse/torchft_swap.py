"""A pytest plug-in that puts our server in the place of torchft's own: `-p torchft_swap`.

Each LighthouseServer that a test makes is then `python -m lighthouse serve` in a child process.
The number of servers made is written to the file that HEADWAY_SWAP_COUNT names.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import torchft._torchft
import torchft.coordination

_FIRST_LINE = re.compile(r"lighthouse listening on (http://\S+), status")
_made = 0


class SwappedServer:
    """Looks like torchft's LighthouseServer, with the defaults of its Python binding."""

    def __init__(
        self,
        bind: str,
        min_replicas: int,
        join_timeout_ms: int | None = None,
        quorum_tick_ms: int | None = None,
        heartbeat_timeout_ms: int | None = None,
    ) -> None:
        flags = {
            "bind": bind,
            "http_bind": "none",
            "state_dir": "none",
            "min_replicas": min_replicas,
            "join_timeout_ms": 100 if join_timeout_ms is None else join_timeout_ms,
            "quorum_tick_ms": 100 if quorum_tick_ms is None else quorum_tick_ms,
            "heartbeat_timeout_ms": 5000 if heartbeat_timeout_ms is None else heartbeat_timeout_ms,
        }
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lighthouse", "serve", *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        first_line = self._process.stdout.readline()
        match = _FIRST_LINE.match(first_line)
        assert match is not None, first_line
        self._address = match[1]
        _count()

    def address(self) -> str:
        return self._address

    def shutdown(self) -> None:
        self._process.terminate()
        assert self._process.wait(10) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __del__(self) -> None:
        if self._process.poll() is None:
            self.shutdown()


def _count() -> None:
    global _made
    _made += 1
    path = os.environ.get("HEADWAY_SWAP_COUNT")
    if path:
        Path(path).write_text(str(_made))


torchft._torchft.LighthouseServer = SwappedServer
torchft.coordination.LighthouseServer = SwappedServer
