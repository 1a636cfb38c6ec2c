"""One rank's backstop: it saves when and what it should, behind the training, and says what failed."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from backstop_stores import TroubledFiles
from torch import nn
from torch.distributed.fsdp import fully_shard

from replica.backstop import Backstop, Boundary, Facts, Save, Saved, Store
from replica.backstop import backstop as module
from replica.backstop.names import SaveName
from replica.backstop.writing import write_save
from replica.config import BackstopConfig
from replica.mesh import Ranks
from replica.state import TrainingState

LAST_STEP = 100


class Rank:
    """A rank with a small model, its backstop, and what it was told of its saves."""

    def __init__(self, ranks: Ranks, url: Path, *, group: int = 0, **settings: Any) -> None:
        torch.manual_seed(group)
        self.model = nn.Linear(5, 3)
        fully_shard(self.model, mesh=ranks.mesh)
        self.state = TrainingState(self.model, torch.optim.AdamW(self.model.parameters()))
        self.saved: list[Saved] = []
        self.failed: list[tuple[int, str]] = []
        self.late: list[tuple[int, float]] = []
        self.group = group
        self.store = Store(str(url), "job")
        self.backstop = Backstop(
            config=BackstopConfig(url=str(url), **{"every_steps": 10, **settings}),
            job="job",
            group=group,
            incarnation=f"{group:08x}",
            last_step=LAST_STEP,
            ranks=ranks,
            state=self.state,
            facts=self.facts,
            on_saved=self.saved.append,
            on_failed=lambda step, reason: self.failed.append((step, reason)),
            on_late=lambda step, since_s: self.late.append((step, since_s)),
        )

    def facts(self, digest: str) -> Facts:
        return Facts(
            job="job",
            group=self.group,
            incarnation=f"{self.group:08x}",
            group_world_size=1,
            mode="exact",
            layout=self.state.layout(),
            digest=digest or None,
            fingerprint="f",
            platform="p",
            configuration={"lr": 0.1},
            saved_at_s=1.0,
        )

    def commit(self, step: int, *, owners: tuple[int, ...] = (0, 1), quorum_id: int = 7) -> None:
        """Change the state, as a step does, and come to its boundary."""
        self.change()
        digest = self.state.digest(1)
        self.backstop.after_commit(
            Boundary(step=step, quorum_id=quorum_id, owners=frozenset(owners), digest=digest)
        )

    @torch.no_grad()
    def change(self) -> None:
        for parameter in self.model.parameters():
            parameter.add_(1.0)

    def join(self) -> None:
        """Until no save is being written."""
        if self.backstop._thread is not None:
            self.backstop._thread.join(30.0)

    def steps(self) -> list[int]:
        return sorted(each.name.step for each in self.store.listed() if isinstance(each, Save))


@pytest.fixture
def rank(ranks: Ranks, tmp_path: Path) -> Rank:
    return Rank(ranks, tmp_path)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds every writing up until it is set."""
    opened = threading.Event()

    def held(*args: Any, **kwargs: Any) -> Any:
        assert opened.wait(30)
        return write_save(*args, **kwargs)

    monkeypatch.setattr(module, "write_save", held)
    yield opened
    opened.set()


def test_a_save_holds_the_state_of_its_boundary_though_training_goes_on(
    rank: Rank, gate: threading.Event
) -> None:
    rank.commit(10)
    digest = rank.state.digest(1)
    rank.change()
    assert rank.state.digest(1) != digest
    gate.set()
    rank.join()
    save = rank.backstop.vault.look().save
    assert save is not None
    assert save.manifest.facts.digest == digest
    rank.backstop.vault.load(save)
    assert rank.state.digest(1) == digest


def test_saves_at_the_interval_and_not_between(rank: Rank) -> None:
    for step in (9, 10, 11):
        rank.commit(step)
    rank.join()
    assert rank.steps() == [10]
    assert [(each.name.step, each.name.quorum_id) for each in rank.saved] == [(10, 7)]
    assert rank.saved[0].written.bytes > 0


def test_a_group_that_is_not_the_writer_saves_nothing_until_it_is(ranks: Ranks, tmp_path: Path) -> None:
    rank = Rank(ranks, tmp_path, group=1)
    rank.commit(10)
    assert rank.backstop.finish(limit_s=30.0) is None
    assert rank.steps() == []
    rank.commit(20, owners=(1, 2))
    rank.join()
    assert rank.steps() == [20]


def test_by_the_clock(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(ranks, tmp_path, every_steps=0, every_minutes=1.0)
    now_s = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    rank.commit(1)
    assert rank.saved == []
    now_s += 61
    rank.commit(4)
    rank.join()
    assert rank.steps() == [4]


def test_one_at_a_time_and_the_next_is_made_as_soon_as_it_can(rank: Rank, gate: threading.Event) -> None:
    for step in (10, 20, 21):
        rank.commit(step)
    assert [step for step, _ in rank.late] == [10]
    gate.set()
    rank.join()
    assert rank.steps() == [10]
    for step in (22, 23):
        rank.commit(step)
    rank.join()
    assert rank.steps() == [10, 22]
    assert rank.failed == []


def test_the_last_step_is_saved_when_the_group_leaves(rank: Rank) -> None:
    rank.commit(LAST_STEP)
    assert rank.steps() == []
    assert rank.backstop.finish(limit_s=30.0) is None
    assert rank.steps() == [LAST_STEP]


def test_a_group_that_leaves_saves_its_newest_step_once(rank: Rank) -> None:
    rank.commit(33)
    assert rank.backstop.finish(limit_s=30.0) is None
    assert rank.backstop.finish(limit_s=30.0) is None
    assert rank.steps() == [33]
    assert len(rank.saved) == 1


def test_a_failed_save_is_told_at_once_and_at_the_end(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rank = Rank(ranks, tmp_path / "file")
    rank.commit(10)
    rank.join()
    assert [step for step, _ in rank.failed] == [10]
    sentence = rank.backstop.finish(limit_s=30.0)
    assert sentence is not None
    assert "step 10" in sentence
    assert str(tmp_path) in sentence


def test_a_later_save_mends_an_earlier_failure(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_save", broken)
        rank.commit(10)
        rank.join()
    assert rank.failed == [(10, "RuntimeError: a defect")]
    rank.commit(20)
    assert rank.backstop.finish(limit_s=30.0) is None


def test_one_that_does_not_end_is_a_failure(rank: Rank, gate: threading.Event) -> None:
    rank.commit(LAST_STEP)
    sentence = rank.backstop.finish(limit_s=0.05)
    assert sentence is not None
    assert "0.05 s" in sentence


def test_a_group_is_alone_when_it_computed_the_step_alone(rank: Rank) -> None:
    assert not rank.backstop.is_alone
    rank.commit(1)
    assert not rank.backstop.is_alone
    rank.commit(2, owners=(0, 0))
    assert rank.backstop.is_alone


def test_the_writing_thread_gives_way_to_training(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    nice: Callable[..., int] = module.os.getpriority

    def look(*args: Any, **kwargs: Any) -> Any:
        seen.append(nice(module.os.PRIO_PROCESS, threading.get_native_id()))
        return write_save(*args, **kwargs)

    monkeypatch.setattr(module, "write_save", look)
    rank.commit(10)
    rank.join()
    assert seen == [module.NICENESS]
    assert nice(module.os.PRIO_PROCESS, threading.get_native_id()) == 0


def test_a_group_that_came_later_does_not_let_the_clock_run_anew(ranks: Ranks, tmp_path: Path) -> None:
    rank = Rank(ranks, tmp_path, every_steps=0, every_minutes=1000.0)
    rank.commit(7)
    rank.join()
    rank.commit(8)
    rank.join()
    assert rank.steps() == [7]


def test_a_state_that_came_from_a_peer_is_not_saved_as_the_last_commit(rank: Rank) -> None:
    rank.commit(33)
    rank.change()
    rank.backstop.moved(None)
    assert not rank.backstop.knows_of_saves()
    assert rank.backstop.finish(limit_s=30.0) is None
    assert rank.steps() == []


def test_an_older_save_in_flight_is_not_taken_for_the_newest(rank: Rank, gate: threading.Event) -> None:
    rank.commit(10)
    rank.commit(11)
    sentence = rank.backstop.finish(limit_s=0.05)
    assert sentence is not None
    assert "step 11" in sentence
    assert [step for step, _ in rank.failed] == [11]


def test_an_older_save_in_flight_is_waited_for(rank: Rank, gate: threading.Event) -> None:
    rank.commit(10)
    rank.commit(11)
    threading.Timer(0.2, gate.set).start()
    assert rank.backstop.finish(limit_s=30.0) is None
    assert rank.steps() == [10, 11]


def test_a_newer_quorum_s_save_is_no_failure_of_this_one(rank: Rank, tmp_path: Path, ranks: Ranks) -> None:
    rank.commit(10, quorum_id=9)
    rank.join()
    late = Rank(ranks, tmp_path)
    late.commit(10, quorum_id=8)
    late.join()
    assert late.failed == []
    assert late.backstop.finish(limit_s=30.0) is None
    assert [each.name.quorum_id for each in rank.store.listed() if isinstance(each, Save)] == [9]


def fence(folder: Path, step: int, quorum_id: int) -> None:
    """What looks like a save of a later quorum, as far as names and sizes tell."""
    save = folder / "job" / SaveName(step=step, quorum_id=quorum_id, incarnation="0000000f").text
    save.mkdir(parents=True)
    for name in (".metadata", "headway.json", "__0_0.distcp"):
        (save / name).write_text("garbage")


def test_a_last_save_that_is_fenced_off_by_another_step_is_a_failure(
    rank: Rank, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fence(tmp_path, 90, 9)
    rank.commit(LAST_STEP)
    sentence = rank.backstop.finish(limit_s=30.0)
    assert sentence is not None
    assert f"save of step {LAST_STEP}" in sentence
    assert "a newer quorum has published step-000000000090-quorum-000000000009" in sentence
    assert [step for step, _ in rank.failed] == [LAST_STEP]
    assert rank.saved == []
    assert rank.backstop.is_fenced


def test_a_save_that_was_fenced_off_behind_the_training_is_not_taken_for_made(
    rank: Rank, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fence(tmp_path, 90, 9)
    rank.commit(10)
    rank.join()
    assert "was given up" in caplog.text
    assert rank.failed == []
    assert rank.backstop.finish(limit_s=30.0) is not None
    rank.commit(20, quorum_id=10)
    assert rank.backstop.finish(limit_s=30.0) is None
    assert rank.steps() == [20]


def test_a_save_that_no_name_can_be_given_is_a_failure(rank: Rank) -> None:
    rank.commit(LAST_STEP, quorum_id=10**18)
    assert "is not between" in (rank.backstop.finish(limit_s=30.0) or "")
    assert not rank.backstop.is_fenced


def test_what_is_in_flight_is_waited_for_only_so_long(rank: Rank, gate: threading.Event) -> None:
    rank.commit(10)
    rank.commit(11)
    assert not rank.backstop.settle(limit_s=0.05)
    gate.set()
    assert rank.backstop.settle(limit_s=30.0)
    assert rank.steps() == [10]
    assert rank.failed == []


def test_a_state_that_cannot_be_copied_costs_the_save_and_nothing_else(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory() -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(rank.backstop._staging, "copy", no_memory)
        rank.commit(10)
    assert [step for step, _ in rank.failed] == [10]
    assert "could not be copied" in rank.failed[0][1]
    rank.commit(20)
    rank.join()
    assert rank.steps() == [20]


def test_the_last_step_is_not_saved_twice(rank: Rank, tmp_path: Path, ranks: Ranks) -> None:
    rank.commit(LAST_STEP)
    assert rank.backstop.finish(limit_s=30.0) is None
    other = Rank(ranks, tmp_path, group=1)
    other.commit(LAST_STEP)
    last = Boundary(step=LAST_STEP, quorum_id=8, owners=frozenset({1}), digest="")
    assert other.backstop.finish(last, limit_s=30.0) is None
    assert (len(rank.saved), len(other.saved)) == (1, 0)


def test_a_store_that_hangs_does_not_hold_training_up(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.commit(10)
    rank.join()
    assert rank.backstop.is_saved(10)
    healed, store = threading.Event(), rank.backstop._store
    store.files = TroubledFiles(store, lambda doing, path: healed.wait() and None)  # type: ignore[assignment]
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    assert not rank.backstop.is_saved(10)
    healed.set()
