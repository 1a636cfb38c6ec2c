"""The manifest of a save: what it is, and size and checksum of each of its files. Pure.

On disk it is JSON, and nothing in it is believed before `decode` has checked it.
"""

import builtins
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import xxhash

from replica.backstop.names import SaveName

FILE_NAME = "headway.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 64 << 20
MAX_FILES = 1 << 16
_MAX_TEXT = 4096
_MAX_INTEGER = 2**63 - 1
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_HEX_128 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a save: its plain name, its length in bytes, its checksum (32 hexadecimal digits)."""

    name: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a save is of, and who made it.

    group, incarnation, group_world_size: the writers, and how many ranks they are. mode: how
    gradients were added up. layout: hash of names, types and shapes of the state. digest: of the
    state, None where none was made. fingerprint: of the configuration; configuration: its values,
    plain JSON. platform: what the bits depend on. saved_at_s: when it was staged, Unix time in seconds.
    """

    job: str
    group: int
    incarnation: str
    group_world_size: int
    mode: str
    layout: int
    digest: str | None
    fingerprint: str
    platform: str
    configuration: Mapping[str, Any]
    saved_at_s: float


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that is known of a save without reading its state. versions: of what wrote it."""

    name: SaveName
    facts: Facts
    versions: Mapping[str, str]
    files: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files together, the manifest left out."""
        return sum(file.bytes for file in self.files)

    def encode(self) -> builtins.bytes:
        """As JSON. Raises ValueError when the configuration is not plain JSON."""
        fields = {
            "format": FORMAT,
            "name": self.name.text,
            **asdict(self.facts),
            "saved_at_s": float(self.facts.saved_at_s),
            "versions": dict(self.versions),
            "files": [asdict(file) for file in self.files],
        }
        try:
            fields["checksum"] = _checksum(fields)
            return json.dumps(fields, indent=1, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the configuration cannot be written as JSON: {error}") from None

    @classmethod
    def decode(cls, data: builtins.bytes) -> Self:
        """Check and read a manifest. Raises ValueError, one sentence, for anything that is wrong with it."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"the manifest is longer than {MAX_MANIFEST_BYTES} bytes")
        fields = _object_of(data)
        if fields.get("format") != FORMAT:
            raise ValueError(f"the manifest is of format {str(fields.get('format'))[:40]}, not {FORMAT}")
        if fields.pop("checksum", None) != _checksum(fields):
            raise ValueError("the manifest does not agree with its own checksum")
        name = SaveName.parse(_text(fields, "name"))
        if name is None:
            raise ValueError(f"the manifest holds the name {fields['name'][:80]!r}, which no save has")
        return cls(name=name, facts=_facts(fields), versions=_versions(fields), files=_files(fields))


def _object_of(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the manifest is not JSON: {str(error)[:200] or 'not text'}") from None
    if not isinstance(found, dict):
        raise ValueError("the manifest is not a JSON object")
    return found


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _checksum(fields: Mapping[str, Any]) -> str:
    try:
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("the manifest is nested too deeply") from None
    return xxhash.xxh3_128_hexdigest(canonical.encode())


def _facts(fields: Mapping[str, Any]) -> Facts:
    configuration = fields.get("configuration")
    if not isinstance(configuration, dict):
        raise ValueError("configuration in the manifest is not an object")
    saved_at_s = fields.get("saved_at_s")
    if not isinstance(saved_at_s, float) or not math.isfinite(saved_at_s):
        raise ValueError("saved_at_s in the manifest is not a number of seconds")
    return Facts(
        job=_text(fields, "job"),
        group=_whole(fields, "group"),
        incarnation=_text(fields, "incarnation"),
        group_world_size=_whole(fields, "group_world_size", least=1),
        mode=_text(fields, "mode"),
        layout=_whole(fields, "layout"),
        digest=None if fields.get("digest", "") is None else _text(fields, "digest"),
        fingerprint=_text(fields, "fingerprint"),
        platform=_text(fields, "platform"),
        configuration=configuration,
        saved_at_s=saved_at_s,
    )


def _versions(fields: Mapping[str, Any]) -> dict[str, str]:
    versions = fields.get("versions")
    if not isinstance(versions, dict) or len(versions) > 100:
        raise ValueError("versions in the manifest is not a small object")
    return {str(key): _text(versions, key) for key in versions}


def _files(fields: Mapping[str, Any]) -> tuple[FileEntry, ...]:
    entries = fields.get("files")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_FILES:
        raise ValueError(f"files in the manifest is not a list of 1 to {MAX_FILES} files")
    files = tuple(_file(entry) for entry in entries)
    if len({file.name for file in files}) < len(files):
        raise ValueError("the manifest lists a file twice")
    return files


def _file(entry: Any) -> FileEntry:
    if not isinstance(entry, dict):
        raise ValueError("a file in the manifest is not an object")
    name, checksum = _text(entry, "name"), _text(entry, "xxh3_128")
    if not _PLAIN_NAME.fullmatch(name) or name in (".", "..", FILE_NAME):
        raise ValueError(f"the manifest lists {name[:80]!r}, which is not the plain name of a file of a save")
    if not _HEX_128.fullmatch(checksum):
        raise ValueError(f"the checksum of {name} in the manifest is not 32 hexadecimal digits")
    return FileEntry(name=name, bytes=_whole(entry, "bytes"), xxh3_128=checksum)


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError(f"{key[:80]} in the manifest is not a text of at most {_MAX_TEXT} characters")
    return value


def _whole(fields: Mapping[str, Any], key: str, *, least: int = 0) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_INTEGER:
        raise ValueError(f"{key} in the manifest is not a whole number of at least {least}")
    return value
