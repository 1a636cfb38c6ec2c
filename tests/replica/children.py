"""Child processes of a test: started together, and gone with their pipes when the block ends."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


class Children:
    """Python scripts of this folder, each talking through pipes of text lines."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start `python WORDS`; a first word that ends in .py is looked up in this folder."""
        first = str(FOLDER / words[0]) if words[0].endswith(".py") and "/" not in words[0] else words[0]
        child = subprocess.Popen(
            [sys.executable, first, *words[1:]],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(child)
        return child


@contextmanager
def children() -> Iterator[Children]:
    """Start children in the block; all of them are killed and reaped at its end."""
    started = Children()
    try:
        yield started
    finally:
        for child in started.running:
            child.kill()
        for child in started.running:
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None and not pipe.closed:
                    pipe.close()


def say(child: subprocess.Popen[str], word: str) -> None:
    """Write a line to a child."""
    assert child.stdin is not None
    child.stdin.write(word + "\n")
    child.stdin.flush()


def hear(child: subprocess.Popen[str]) -> str:
    """The next line of a child; with what it wrote to standard error when there is none."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        assert child.stderr is not None
        raise AssertionError(f"the child ended: {child.stderr.read()[-2000:]}")
    return line.rstrip("\n")
