"""The record of a fetch: when it is complete, who is still waited for, and what slow donors lose."""

import dataclasses
import threading
import time
from collections.abc import Sequence

import pytest
import torch
from transfer_states import plain

from replica.transfer.agreement import Agreed
from replica.transfer.gathering import (
    LATE_AT_LEAST_S,
    LATE_FACTOR,
    MAX_INCIDENTS,
    Gathering,
    Progress,
    Task,
)
from replica.transfer.manifest import Layout, Manifest
from replica.transfer.memory import specs_of
from replica.transfer.report import Cause, Fault

STEP = 5
LATE_S = 10.0
GATHER_S = 1000.0
PATIENCE_S = 30.0


class FakeLine:
    """Counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def gathering_of(*donors: str, own: dict[str, torch.Tensor] | None = None) -> Gathering:
    return Gathering(
        donors,
        step=STEP,
        expected=plain(0, count=2, size=256) if own is None else own,
        fresh=True,
        gather_s=GATHER_S,
        late_s=LATE_S,
        jitter=lambda: 0.0,
    )


def manifest(mark: bytes = b"a", step: int = STEP) -> Manifest:
    """Of two chunks, each one tensor."""
    layout = Layout(tensors=specs_of(plain(0, count=2, size=256)), chunk_bytes=1024)
    return Manifest(step=step, layout=layout, digests=(mark * 8, b"z" * 8))


def task_of(gathering: Gathering, donor: str) -> Task:
    task = gathering.next_chunk(donor, FakeLine())  # type: ignore[arg-type]
    assert task is not None
    return task


def closed(tasks: Sequence[Task]) -> list[int]:
    return [task.line.closed for task in tasks]  # type: ignore[attr-defined]


def now() -> float:
    return time.monotonic()


def test_it_is_complete_when_every_chunk_is_verified_and_every_donor_has_spoken() -> None:
    gathering = gathering_of("a", "b")
    gathering.offer("a", manifest())
    assert gathering.judge(now()) is Progress.PENDING
    for _ in range(2):
        gathering.verified(task_of(gathering, "a"))
    assert gathering.judge(now()) is Progress.PENDING  # b may offer something else
    gathering.offer("b", manifest())
    assert gathering.judge(now()) is Progress.COMPLETE


def test_a_donor_that_does_not_speak_is_waited_for_only_so_long() -> None:
    gathering = gathering_of("a", "b")
    gathering.offer("a", manifest())
    gathering.judge(now())
    for _ in range(2):
        gathering.verified(task_of(gathering, "a"))
    assert gathering.judge(now()) is Progress.PENDING
    assert gathering.judge(now() + GATHER_S) is Progress.COMPLETE


def test_a_donor_that_cannot_be_reached_is_not_waited_for() -> None:
    gathering = gathering_of("a", "b")
    gathering.offer("a", manifest())
    gathering.judge(now())
    for _ in range(2):
        gathering.verified(task_of(gathering, "a"))
    for _ in range(2):
        gathering.blame("b", Fault.UNREACHABLE, "it is dead")
    assert gathering.judge(now()) is Progress.COMPLETE


def test_a_late_chunk_is_taken_away_once_when_others_have_nothing_to_do() -> None:
    gathering = gathering_of("a", "b")
    for donor in ("a", "b"):
        gathering.offer(donor, manifest())
    gathering.judge(now())
    slow = task_of(gathering, "a")
    gathering.judge(now() + 2 * LATE_S)
    assert closed([slow]) == [0]  # there is other work to do
    quick = task_of(gathering, "b")
    gathering.verified(quick)
    gathering.judge(slow.started_s + LATE_AT_LEAST_S / 2)
    assert closed([slow]) == [0]  # it is not late yet
    gathering.judge(slow.started_s + LATE_S + 1)
    gathering.judge(now() + 3 * LATE_S)
    assert closed([slow, quick]) == [1, 0]
    assert gathering.recalled(slow)
    gathering.failed(slow)
    again = task_of(gathering, "b")
    assert again.chunk == slow.chunk
    gathering.judge(now() + 4 * LATE_S)
    assert closed([again]) == [0]  # or two slow donors would take it from each other for ever
    assert not gathering.recalled(again)


def test_how_late_is_late_depends_on_how_long_chunks_take() -> None:
    gathering = gathering_of("a", "b")
    for donor in ("a", "b"):
        gathering.offer(donor, manifest())
    gathering.judge(now())
    slow, quick = task_of(gathering, "a"), task_of(gathering, "b")
    gathering.verified(dataclasses.replace(quick, started_s=now() - 1.0))
    gathering._tasks.discard(quick)
    gathering.judge(slow.started_s + LATE_FACTOR - 0.1)
    assert closed([slow]) == [0]
    gathering.judge(slow.started_s + LATE_FACTOR + 5.0)
    assert closed([slow]) == [1]


def test_the_only_donor_keeps_its_late_chunk() -> None:
    gathering = gathering_of("a")
    gathering.offer("a", manifest())
    gathering.judge(now())
    tasks = [task_of(gathering, "a") for _ in range(2)]
    gathering.judge(now() + 2 * LATE_S)
    assert closed(tasks) == [0, 0]


def test_the_end_waits_until_nobody_writes_any_more() -> None:
    gathering = gathering_of("a")
    gathering.offer("a", manifest())
    gathering.judge(now())
    task = task_of(gathering, "a")
    gathering.enter(task.line)
    ended = threading.Event()

    def end() -> None:
        gathering.end(succeeded=False)
        ended.set()

    thread = threading.Thread(target=end)
    thread.start()
    with gathering._changed:
        assert gathering._changed.wait_for(lambda: gathering._over, PATIENCE_S)
    assert closed([task]) == [1]
    assert not ended.is_set()
    gathering.failed(task)
    assert ended.wait(PATIENCE_S)
    thread.join()
    assert gathering.next_chunk("a", FakeLine()) is None  # type: ignore[arg-type]
    assert not gathering.may_talk("a", first=True)


def test_a_connection_that_comes_after_the_end_is_closed() -> None:
    gathering = gathering_of("a")
    gathering.end(succeeded=True)
    line = FakeLine()
    gathering.enter(line)  # type: ignore[arg-type]
    assert line.closed == 1


def test_the_state_is_changed_only_when_nobody_writes_the_other_one() -> None:
    gathering = gathering_of("a", "b", "c")
    gathering.offer("a", manifest(b"a"))
    gathering.judge(now())
    task = task_of(gathering, "a")
    for donor in ("b", "c"):
        gathering.offer(donor, manifest(b"b"))
    gathering.judge(now())
    assert [(i.donor, i.fault) for i in gathering.incidents()] == [("a", Fault.DRIFTED)]
    assert not gathering._has_work("b")
    gathering.verified(task)
    assert gathering.judge(now()) is Progress.PENDING
    for _ in range(2):
        gathering.verified(task_of(gathering, "b"))
    assert gathering.judge(now()) is Progress.COMPLETE
    assert sum(share.bytes for share in gathering.shares()) == 2048
    gathering.end(succeeded=True)
    assert gathering.adopted == manifest(b"b")


def test_a_liar_s_word_on_what_the_state_is_counts_no_more() -> None:
    gathering = gathering_of("a", "b", "c")
    for donor, mark in (("a", b"a"), ("b", b"a"), ("c", b"c")):
        gathering.offer(donor, manifest(mark))
    assert isinstance(gathering._agree(now()), Agreed)
    for _ in range(2):
        gathering.blame("a", Fault.WRONG_BYTES, "flipped")
    assert gathering.judge(now()) is Cause.DISAGREEMENT


def test_a_donor_whose_copy_is_gone_is_asked_what_it_has_now() -> None:
    gathering = gathering_of("a")
    gathering.offer("a", manifest())
    gathering.blame("a", Fault.GONE, "freed")
    assert not gathering.has_offer("a")
    assert gathering.next_chunk("a", FakeLine()) is None  # type: ignore[arg-type]
    assert gathering.may_talk("a", first=True)
    assert gathering.judge(now()) is Progress.PENDING


def test_incidents_are_bounded_and_end_with_the_fetch() -> None:
    gathering = gathering_of(*(str(number) for number in range(2 * MAX_INCIDENTS)))
    for number in range(2 * MAX_INCIDENTS):
        gathering.blame(str(number), Fault.STALLED, "slow")
    assert len(gathering.incidents()) == MAX_INCIDENTS
    ended = gathering_of("a")
    ended.end(succeeded=False)
    ended.blame("a", Fault.UNREACHABLE, "the fetch closed the connection itself")
    assert ended.incidents() == ()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault.MISFIT, Cause.MISFIT),
        (Fault.REFUSED, Cause.REFUSED),
        (Fault.NEWER_STEP, Cause.NO_DONOR),
        (Fault.STALLED, None),
    ],
)
def test_it_ends_when_no_donor_is_left(fault: Fault, cause: Cause | None) -> None:
    gathering = gathering_of("a")
    gathering.blame("a", fault, "detail")
    assert gathering.judge(now()) is (cause or Progress.PENDING)
    assert "detail" in gathering.last_words()


def test_donors_that_are_out_for_different_faults_are_just_no_donor_left() -> None:
    gathering = gathering_of("a", "b")
    gathering.blame("a", Fault.MISFIT, "another model")
    gathering.blame("b", Fault.REFUSED, "another token")
    assert gathering.judge(now()) is Cause.NO_DONOR
