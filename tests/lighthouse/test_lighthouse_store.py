"""The store: what comes back after a restart, and what is refused and left as it was."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lighthouse import store as store_module
from lighthouse.model import Identity, JobRecord, Refusal, Restore, SaveOffer
from lighthouse.store import FILE_NAME, MemoryStore, SqliteStore, Store, StoreError, open_store

RECORD = JobRecord(
    job="job",
    quorum_id=7,
    members=("job/0:a", "job/1:b"),
    max_step=41,
    holders=((0, "c0ffee"), (1, "beef")),
    tombs=(("dead", Refusal.SUPERSEDED), ("feed", Refusal.EVICTED)),
    identity=Identity(fingerprint="f", group_world_size=2, platform="p"),
    floor=3,
    restore=Restore(save=SaveOffer(name="step-41", step=41, quorum_id=6), told=((0, "c0ffee"), (1, "beef"))),
)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[Store]:
    opened = open_store(None if request.param == "memory" else state_dir)
    yield opened
    opened.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_record_is_replaced_and_forgotten(store: Store) -> None:
    assert store.load() == {}
    store.write(RECORD)
    finished = JobRecord(job="job", quorum_id=8, finished_step=50)
    store.write(finished)
    store.write(JobRecord(job="", quorum_id=1, members=("ddp:x",)))
    assert store.load()["job"] == finished
    store.forget("job")
    store.forget("no such job")
    assert set(store.load()) == {""}


def test_too_many_jobs_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_JOBS_ON_RECORD", 2)
    for job in ("a", "b", "a"):
        store.write(JobRecord(job=job, quorum_id=1))
    with pytest.raises(StoreError, match="forget some"):
        store.write(JobRecord(job="c", quorum_id=1))


def test_records_outlive_a_store_that_was_never_closed(state_dir: Path) -> None:
    first = SqliteStore(state_dir)
    first.write(RECORD)
    copy = state_dir.parent / "copy"
    copy.mkdir()
    for name, data in contents(state_dir).items():
        (copy / name).write_bytes(data)
    first.close()
    second = SqliteStore(copy)
    assert second.load() == {"job": RECORD}
    second.close()


def test_writes_are_synchronous(state_dir: Path) -> None:
    store = SqliteStore(state_dir)
    assert store._database.execute("pragma synchronous").fetchone() == (2,)
    assert store._database.execute("pragma journal_mode").fetchone() == ("wal",)
    store.close()


def test_the_secrets_in_it_are_for_the_owner_only(state_dir: Path) -> None:
    store = SqliteStore(state_dir)
    store.write(RECORD)
    assert state_dir.stat().st_mode & 0o077 == 0
    for path in state_dir.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    store.close()


def test_two_servers_cannot_share_a_directory(state_dir: Path) -> None:
    first = SqliteStore(state_dir)
    with pytest.raises(StoreError, match="in use by another Lighthouse"):
        SqliteStore(state_dir)
    first.close()
    SqliteStore(state_dir).close()


def test_a_directory_with_other_things_is_left_alone(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "thesis.tex").write_text("important")
    with pytest.raises(StoreError, match=r"holds other things \(thesis.tex\)"):
        SqliteStore(state_dir)
    assert contents(state_dir) == {"thesis.tex": b"important"}


def test_what_a_crash_left_while_the_first_file_was_made_is_no_obstacle(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / (FILE_NAME + ".new")).write_bytes(b"half")
    store = SqliteStore(state_dir)
    store.write(RECORD)
    store.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_earlier_version_is_taken_over(state_dir: Path, version: int) -> None:
    state_dir.mkdir()
    database = sqlite3.connect(state_dir / FILE_NAME, isolation_level=None)
    lineage, identity = "lineage text not null default '{}'", "identity text not null default '{}'"
    database.execute(
        "create table jobs (job text primary key, quorum_id integer not null, members text not null,"
        " max_step integer not null, finished_step integer"
        + (f", {lineage}, {identity}) strict" if version == 2 else ") strict")
    )
    database.execute(
        "insert into jobs (job, quorum_id, members, max_step) values ('job', 7, '[\"job/0:a\"]', 41)"
    )
    database.execute(f"pragma application_id = {store_module._APPLICATION_ID}")
    database.execute(f"pragma user_version = {version}")
    database.close()
    for _ in range(2):
        store = SqliteStore(state_dir)
        assert store.load()["job"] == JobRecord(job="job", quorum_id=7, members=("job/0:a",), max_step=41)
        store.close()
    store = SqliteStore(state_dir)
    store.write(RECORD)
    assert store.load() == {"job": RECORD}
    store.close()


@pytest.mark.parametrize("damage", ["text", "foreign", "version", "truncated", "scrambled", "bad_member"])
def test_a_damaged_or_foreign_file_is_refused_and_left_alone(state_dir: Path, damage: str) -> None:
    store = SqliteStore(state_dir)
    for number in range(60):
        store.write(JobRecord(job=f"job{number}", quorum_id=number, members=(f"job{number}/0:a",)))
    store.close()
    _damage(state_dir / FILE_NAME, damage)
    before = contents(state_dir)
    with pytest.raises(StoreError) as caught:
        SqliteStore(state_dir)
    assert "\n" not in str(caught.value)
    assert str(state_dir) in str(caught.value)
    assert contents(state_dir) == before


def _damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "text":
            path.write_text("not a database")
        case "foreign":
            path.unlink()
            database = sqlite3.connect(path)
            database.execute("create table other (x)")
            database.close()
        case "version":
            path.write_bytes(data[:60] + (99).to_bytes(4, "big") + data[64:])
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "scrambled":
            path.write_bytes(data[:4096] + bytes(255 - byte for byte in data[4096:]))
        case "bad_member":
            database = sqlite3.connect(path, isolation_level=None)
            database.execute("update jobs set members = ? where job = 'job3'", ('["a/b/c"]',))
            database.close()


def test_an_unusable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"^cannot use the state directory"):
        SqliteStore(tmp_path / "file" / "state")


def test_a_failed_write_is_a_store_error(state_dir: Path) -> None:
    store = SqliteStore(state_dir)
    store.write(RECORD)
    store._database.execute("pragma query_only = on")
    with pytest.raises(StoreError, match=r"^cannot write to the state directory"):
        store.write(JobRecord(job="job", quorum_id=8))
    assert store.load() == {"job": RECORD}
    store.close()


@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 2**62),
            st.integers(0, 2**62),
            st.none() | st.integers(0, 9),
        ),
        max_size=20,
    )
)
def test_memory_and_disk_agree(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, int, int, int | None]]
) -> None:
    disk, memory = SqliteStore(tmp_path_factory.mktemp("s") / "state"), MemoryStore()
    for job, quorum_id, step, end in writes:
        record = JobRecord(
            job=job, quorum_id=quorum_id, members=(f"{job}/0:u",), max_step=step, finished_step=end
        )
        disk.write(record)
        memory.write(record)
    assert disk.load() == memory.load()
    disk.close()
