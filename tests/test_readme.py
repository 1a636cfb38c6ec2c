"""The README keeps its promises about itself: its file tree is that of the repository."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = (
    "protos",
    "lighthouse",
    "replica",
    "replica/backstop",
    "replica/bridge",
    "replica/transfer",
    "train",
    "train/cluster",
    "train/evidence",
)


def tree() -> dict[str, set[str]]:
    """The README's file tree: files by room. Fails for a file without a phrase."""
    text = (ROOT / "README.md").read_text().split("## The files")[1].split("```")[1]
    found: dict[str, set[str]] = {}
    room = ""
    for line in text.strip().splitlines():
        name, phrase = re.split(r"\s{2,}| (?=[a-z])", line.strip(), maxsplit=1)
        assert phrase, line
        if not line.startswith(" "):
            room = name.rstrip("/")
        else:
            found.setdefault(room, set()).add(name)
    return found


def test_the_file_tree_is_complete() -> None:
    written = tree()
    for room in ROOMS:
        there = {
            path.name
            for path in (ROOT / room).iterdir()
            if path.suffix in (".py", ".proto") and "_pb2" not in path.name and path.name != "__init__.py"
        }
        assert written[room] == there, room
