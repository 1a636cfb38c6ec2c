"""What an error says, as one line of bounded length: for sentences, events and the ledger."""

MAX_CHARS = 300


def one_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text; torch's go on with a stack of C++."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = type(error).__name__
    return f"{kind}: {text}"[:MAX_CHARS] if text else kind
