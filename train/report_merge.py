"""Puts together the parts of one run that hosts without a shared disk kept in folders of their own."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replica.errors import UserError
from replica.ledger import events_path


def merge(parts: Sequence[Path], out: Path) -> None:
    """Write the ledgers and events of all parts into the folder `out`, which is made.

    What several parts hold is taken once, torn last lines are left out. Raises UserError where a part
    holds nothing, or `out` holds a run, OSError where a file cannot be written.
    """
    if events_path(out).exists() or (out / "ledger").exists():
        raise UserError(f"the folder {out} holds a run already; name a new one with --merge")
    files = {part: [*sorted((part / "ledger").glob("*.jsonl")), events_path(part)] for part in parts}
    found = {part: [path for path in own if path.is_file()] for part, own in files.items()}
    for part, own in found.items():
        if not own:
            raise UserError(
                f"the folder {part} holds neither ledger nor events; name the --out folder of a host"
            )
    (out / "ledger").mkdir(parents=True)
    try:
        _write(parts, found, out)
    except OSError:
        # Half a run would be taken for a whole one.
        shutil.rmtree(out / "ledger")
        events_path(out).unlink(missing_ok=True)
        raise


def _write(parts: Sequence[Path], found: Mapping[Path, list[Path]], out: Path) -> None:
    for name in sorted({path.relative_to(part) for part, own in found.items() for path in own}):
        lines = [_lines(part / name) for part in parts if part / name in found[part]]
        place = _time if name == events_path(Path()) else _quorum
        (out / name).write_bytes(b"".join(line + b"\n" for line in _in_order(lines, place)))


def _lines(path: Path) -> list[bytes]:
    *lines, last = path.read_bytes().split(b"\n")
    return [*lines, last] if _record(last) else lines


def _record(line: bytes) -> dict[str, Any]:
    """The JSON object of a line, an empty one where it cannot be read."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _in_order(parts: Iterable[list[bytes]], place: Callable[[dict[str, Any]], float]) -> Iterator[bytes]:
    """The lines of all parts by their place, each once; those of one part stay in their order."""
    placed: dict[bytes, float] = {}
    for lines in parts:
        highest = float("-inf")
        for line in lines:
            highest = max(highest, place(_record(line)))
            placed.setdefault(line, highest)
    return (line for line, _ in sorted(placed.items(), key=lambda item: item[1]))


def _time(event: dict[str, Any]) -> float:
    return _number(event.get("t"))


def _quorum(line: dict[str, Any]) -> float:
    """A group that moved to another host met quorums of higher ids there, whatever the clock says."""
    return _number(line.get("quorum_id"))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("-inf")
