"""The job's token: read whole or not at all, and never a word of it in what is said."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.job_token import MAX_CHARS, MIN_CHARS, TokenFileError, others_may_read, read_token

SECRET = "correct horse battery"


def test_white_space_around_it_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"\n  {SECRET}\t\r\n")
    assert read_token(path) == SECRET.encode()


PRINTABLE = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=MIN_CHARS, max_size=MAX_CHARS)


@given(token=PRINTABLE | st.sampled_from([n * 4096 for n in ("x", "é", "漢", "😀")]))
def test_any_printable_token_of_a_usable_length_is_read(
    tmp_path_factory: pytest.TempPathFactory, token: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "token"
    path.write_text(token)
    assert read_token(path) == token.encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"f" * (MIN_CHARS - 1), "is too short"),
        (b"f" * (MAX_CHARS + 1), "is too long"),
        (b"f" * (1 << 20), "is too long"),
        (b"first line of two\nfoo bar second line", "is not one line of printable characters"),
        (b"f" * 16 + b"\x00" + b"f" * 16, "is not one line of printable characters"),
        (b"\xff" * 32, "is not UTF-8 text"),
    ],
)
def test_what_cannot_be_a_token_is_refused_in_a_sentence_that_keeps_it_secret(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(TokenFileError) as refusal:
        read_token(path)
    sentence = str(refusal.value)
    assert says in sentence
    assert str(path) in sentence
    assert "give a file with 16 to 4096 printable characters" in sentence
    assert "\n" not in sentence
    assert "fff" not in sentence
    assert "foo bar" not in sentence


def test_a_file_that_is_missing_or_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match=r"cannot be read \(No such file or directory\)"):
        read_token(tmp_path / "token")
    os.mkfifo(tmp_path / "pipe")  # reading it would block for ever
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(TokenFileError, match="is no plain file"):
            read_token(path)


@pytest.mark.parametrize(("mode", "open_to_all"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_everybody_may_read_is_found_out(tmp_path: Path, mode: int, open_to_all: bool) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(mode)
    assert others_may_read(path) is open_to_all
    assert not others_may_read(tmp_path / "gone")
