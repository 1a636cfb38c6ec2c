"""What an error says, as one line of bounded length: for sentences, events and the ledger."""

import re

MAX_CHARS = 300
# Where in torch's C++ an error was raised, as gloo and c10d begin their texts: nothing that helps a user.
_PLACE = re.compile(r"^\[[^\]\s]+\.(?:cc|cpp|cu|h|hpp):\d+\]\s*")


def one_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text, without place and stack in torch's C++."""
    lines = (_PLACE.sub("", line.strip()) for line in str(error).splitlines())
    text = next((line for line in lines if line), "")
    kind = type(error).__name__
    return f"{kind}: {text}"[:MAX_CHARS] if text else kind
