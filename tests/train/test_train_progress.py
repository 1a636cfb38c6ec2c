"""Progress: a bar on a terminal that leaves nothing behind, plain lines elsewhere, nothing for short work."""

import io

import pytest

from train import progress
from train.progress import ByteProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_short_work_is_not_spoken_of() -> None:
    stream = io.StringIO()
    with ByteProgress("verifying", 10, stream) as shown:
        shown.advance(10)
    assert stream.getvalue() == ""


def test_long_work_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s[0])
    stream = io.StringIO()
    with ByteProgress("verifying", 40 * 10**6, stream) as shown:
        for _ in range(4):
            now_s[0] += 3.0
            shown.advance(10**7)
    assert stream.getvalue() == "verifying: 20 of 40 MB\nverifying: 40 of 40 MB\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with ByteProgress("verifying", 100, stream) as shown:
        shown.advance(50)
    assert "verifying" in stream.getvalue()
    assert "50/100 bytes" in stream.getvalue()
