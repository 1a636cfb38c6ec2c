"""An error is one line, whatever its text looks like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.error_line import MAX_CHARS, one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("peer is gone\nframe #0: c10::Error"), "RuntimeError: peer is gone"),
        (ValueError("\n  two\nlines"), "ValueError: two"),
        (TimeoutError(), "TimeoutError"),
        (
            RuntimeError("[/__w/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:37353"),
            "RuntimeError: Connection closed by peer [::1]:37353",
        ),
        (RuntimeError("[../socket.cpp:12]\nit is gone"), "RuntimeError: it is gone"),
        (ValueError("[Rank 1] [10.0.0.1:80] stays"), "ValueError: [Rank 1] [10.0.0.1:80] stays"),
        (KeyError("surprise"), "KeyError: 'surprise'"),
    ],
)
def test_kind_and_first_line(error: Exception, line: str) -> None:
    assert one_line(error) == line


@given(st.text())
def test_it_is_one_short_line(text: str) -> None:
    line = one_line(ValueError(text * 100))
    assert len(line) <= MAX_CHARS
    assert len(line.splitlines()) == 1
