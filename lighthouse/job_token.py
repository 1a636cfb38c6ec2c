"""The job's token: a secret that is read from a file, once, and shown to nobody."""

import stat
from pathlib import Path

MIN_CHARS = 16
MAX_CHARS = 4096
_GIVE = (
    f"give a file with {MIN_CHARS} to {MAX_CHARS} printable characters, the same for all groups of the job "
    "and for its Lighthouse"
)


class TokenFileError(ValueError):
    """There is no token in the file. Its text is one sentence, without a word of what is in there."""


def read_token(path: Path) -> bytes:
    """The token in a file, less white space at both ends. Reads a bounded part of it.

    Raises TokenFileError where what is there cannot be a token.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TokenFileError(f"the token file {path} is no plain file: {_GIVE}")
        with path.open("rb") as file:
            text = file.read(4 * MAX_CHARS + 1024).decode().strip()
    except OSError as error:
        raise TokenFileError(f"the token file {path} cannot be read ({error.strerror}): {_GIVE}") from None
    except UnicodeDecodeError:
        raise TokenFileError(f"the token file {path} is not UTF-8 text: {_GIVE}") from None
    if not text:
        raise TokenFileError(f"the token file {path} is empty: {_GIVE}")
    if not MIN_CHARS <= len(text) <= MAX_CHARS:
        length = "short" if len(text) < MIN_CHARS else "long"
        raise TokenFileError(f"the token in {path} is too {length}: {_GIVE}")
    if not text.isprintable():
        raise TokenFileError(f"the token in {path} is not one line of printable characters: {_GIVE}")
    return text.encode()


def others_may_read(path: Path) -> bool:
    """Whether the file is open to every user of this host; not if it is gone by now."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
