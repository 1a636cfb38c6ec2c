"""What outlives the server: one SQLite file in the state directory, or nothing at all.

A write is on disk when it returns. A directory that is not ours, or is damaged, is refused and left
as it was.
"""

import fcntl
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from lighthouse.model import Identity, JobRecord, Refusal, Restore, SaveOffer, parse_replica_id

FILE_NAME = "lighthouse.sqlite3"
LOCK_NAME = "lighthouse.lock"
_FRESH_NAME = "lighthouse.sqlite3.new"
MAX_JOBS_ON_RECORD = 10_000

_APPLICATION_ID = 0x48445759
_VERSION = 3
_TABLE = """
create table jobs (
    job text primary key,
    quorum_id integer not null,
    members text not null,
    max_step integer not null,
    finished_step integer,
    lineage text not null default '{}',
    identity text not null default '{}',
    floor integer not null default 0,
    restore text not null default 'null'
) strict
"""
# What each version lacks that the next one has.
_UPGRADES = {
    1: """
begin immediate;
alter table jobs add column lineage text not null default '{}';
alter table jobs add column identity text not null default '{}';
pragma user_version = 2;
commit;
""",
    2: """
begin immediate;
alter table jobs add column floor integer not null default 0;
alter table jobs add column restore text not null default 'null';
pragma user_version = 3;
commit;
""",
}
_COLUMNS = {1: "'{}', '{}', 0, 'null'", 2: "lineage, identity, 0, 'null'"}


class StoreError(Exception):
    """The state cannot be read or written. Its text is one sentence."""


class Store(Protocol):
    """Where job records are kept."""

    def load(self) -> dict[str, JobRecord]:
        """All records by job."""

    def write(self, record: JobRecord) -> None:
        """Put a record in the place of the job's earlier one. Durable on return; raises StoreError."""

    def forget(self, job: str) -> None:
        """Remove a job's record, if there is one. Durable on return; raises StoreError."""

    def close(self) -> None:
        """Let go of the files."""


class MemoryStore:
    """Keeps records as long as the process lives."""

    def __init__(self) -> None:
        self._records: dict[str, JobRecord] = {}

    def load(self) -> dict[str, JobRecord]:
        """All records by job."""
        return dict(self._records)

    def write(self, record: JobRecord) -> None:
        """Put a record in the place of the job's earlier one."""
        if record.job not in self._records and len(self._records) >= MAX_JOBS_ON_RECORD:
            raise StoreError(_too_many("the memory"))
        self._records[record.job] = record

    def forget(self, job: str) -> None:
        """Remove a job's record, if there is one."""
        self._records.pop(job, None)

    def close(self) -> None:
        """Nothing to let go of."""


class SqliteStore:
    """Keeps records in `state_dir`. For one thread, which each write blocks for one fsync."""

    def __init__(self, state_dir: Path) -> None:
        """Open the directory or make it. Raises StoreError, and then has changed nothing."""
        self._state_dir = state_dir
        self._lock_fd = -1
        _refuse_foreign(state_dir)
        with _trouble(f"cannot use the state directory {state_dir}"):
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(state_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self._refuse_damaged()
            with _trouble(f"cannot use the state directory {state_dir}"):
                self._database = _open(state_dir / FILE_NAME)
            self._known = set(self.load())
        except BaseException:
            os.close(self._lock_fd)
            raise

    def load(self) -> dict[str, JobRecord]:
        """All records by job. Raises StoreError."""
        with _trouble(f"cannot read the state directory {self._state_dir}"):
            return _records(self._database)

    def write(self, record: JobRecord) -> None:
        """Put a record in the place of the job's earlier one. Durable on return; raises StoreError."""
        if record.job not in self._known and len(self._known) >= MAX_JOBS_ON_RECORD:
            raise StoreError(_too_many(str(self._state_dir)))
        with _trouble(f"cannot write to the state directory {self._state_dir}"):
            self._database.execute(
                "insert or replace into jobs values (?, ?, ?, ?, ?, ?, ?, ?, ?)", _row_of(record)
            )
        self._known.add(record.job)

    def forget(self, job: str) -> None:
        """Remove a job's record, if there is one. Durable on return; raises StoreError."""
        with _trouble(f"cannot write to the state directory {self._state_dir}"):
            self._database.execute("delete from jobs where job = ?", (job,))
        self._known.discard(job)

    def close(self) -> None:
        """Close the file and let another Lighthouse have the directory."""
        self._database.close()
        os.close(self._lock_fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(
                f"the state directory {self._state_dir} is in use by another Lighthouse: "
                "stop that one or choose another --state-dir"
            ) from error

    def _refuse_damaged(self) -> None:
        """Read a copy to the end first: to open the file itself would already change it."""
        if not (self._state_dir / FILE_NAME).exists():
            return
        try:
            with tempfile.TemporaryDirectory(prefix="lighthouse-") as folder:
                for name in (FILE_NAME, FILE_NAME + "-wal"):
                    if (self._state_dir / name).exists():
                        shutil.copyfile(self._state_dir / name, Path(folder) / name)
                _read_to_the_end(Path(folder) / FILE_NAME)
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"the state directory {self._state_dir} is damaged ({_flat(error)}): restore {FILE_NAME} "
                "from a copy, or choose another --state-dir to start over"
            ) from error


def open_store(state_dir: Path | None) -> Store:
    """The store for a state directory, or one in memory for None. Raises StoreError."""
    return MemoryStore() if state_dir is None else SqliteStore(state_dir)


def _refuse_foreign(state_dir: Path) -> None:
    """A directory with other things in it, or a file of another program, is not ours to use."""
    with _trouble(f"cannot use the state directory {state_dir}"):
        if not state_dir.exists():
            return
        names = {path.name for path in state_dir.iterdir()} - {LOCK_NAME, _FRESH_NAME, "lost+found"}
        header = (state_dir / FILE_NAME).read_bytes()[:100] if FILE_NAME in names else b""
    if names and FILE_NAME not in names:
        raise StoreError(
            f"{state_dir} holds other things ({min(names)}): choose an empty or a new --state-dir"
        )
    ours = header[68:72] == _APPLICATION_ID.to_bytes(4, "big")
    if names and not (header.startswith(b"SQLite format 3\0") and ours):
        raise StoreError(
            f"{state_dir / FILE_NAME} was not written by a Lighthouse or is damaged: "
            "restore it from a copy, or choose another --state-dir"
        )
    version = int.from_bytes(header[60:64], "big")
    if names and version not in (*_UPGRADES, _VERSION):
        raise StoreError(
            f"{state_dir / FILE_NAME} has version {version}, this Lighthouse reads version {_VERSION}: "
            "use the release that wrote it, or choose another --state-dir"
        )


def _open(path: Path) -> sqlite3.Connection:
    """Open for writing; a new file is complete before it gets its name."""
    if not path.exists():
        fresh = path.with_name(_FRESH_NAME)
        fresh.unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(fresh, isolation_level=None)) as database:
            database.execute(_TABLE)
            database.execute(f"pragma application_id = {_APPLICATION_ID}")
            database.execute(f"pragma user_version = {_VERSION}")
        fresh.rename(path)
        _sync_folder(path.parent)
    database = sqlite3.connect(path, isolation_level=None, timeout=1.0)
    database.execute("pragma journal_mode = wal")
    database.execute("pragma synchronous = full")
    (version,) = database.execute("pragma user_version").fetchone()
    for older in range(version, _VERSION):
        database.executescript(_UPGRADES[older])
    return database


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_to_the_end(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        (verdict,) = database.execute("pragma quick_check(1)").fetchone()
        if verdict != "ok":
            raise ValueError(verdict)
        _records(database)


def _records(database: sqlite3.Connection) -> dict[str, JobRecord]:
    (version,) = database.execute("pragma user_version").fetchone()
    more = _COLUMNS.get(version, "lineage, identity, floor, restore")
    rows = database.execute(f"select job, quorum_id, members, max_step, finished_step, {more} from jobs")
    return {row[0]: _record_of(*row) for row in rows}


def _row_of(record: JobRecord) -> tuple[str | int | None, ...]:
    return (
        record.job,
        record.quorum_id,
        json.dumps(record.members),
        record.max_step,
        record.finished_step,
        json.dumps({"holders": record.holders, "tombs": record.tombs}),
        json.dumps(asdict(record.identity)),
        record.floor,
        json.dumps(None if record.restore is None else asdict(record.restore)),
    )


def _record_of(
    job: str,
    quorum_id: int,
    members: str,
    max_step: int,
    finished_step: int | None,
    lineage: str,
    identity: str,
    floor: int,
    restore: str,
) -> JobRecord:
    """Raises ValueError, KeyError or TypeError if it makes no sense."""
    lives: dict[str, list[tuple[Any, str]]] = json.loads(lineage)
    return JobRecord(
        job=job,
        quorum_id=quorum_id,
        members=tuple(parse_replica_id(text).text for text in json.loads(members)),
        max_step=max_step,
        finished_step=finished_step,
        holders=tuple((int(group), digest) for group, digest in lives.get("holders", ())),
        tombs=tuple((digest, Refusal(why)) for digest, why in lives.get("tombs", ())),
        identity=Identity(**json.loads(identity)),
        floor=floor,
        restore=_restore_of(json.loads(restore)),
    )


def _restore_of(fields: dict[str, Any] | None) -> Restore | None:
    if fields is None:
        return None
    told = tuple((int(group), str(digest)) for group, digest in fields["told"])
    return Restore(save=SaveOffer(**fields["save"]), told=told)


@contextmanager
def _trouble(what: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{what} ({_flat(error)}): check the disk and its permissions") from error


def _too_many(where: str) -> str:
    return f"{where} holds {MAX_JOBS_ON_RECORD} jobs: forget some with `lighthouse forget`"


def _flat(error: Exception) -> str:
    """SQLite may speak in several lines."""
    return " ".join(str(error).split())
