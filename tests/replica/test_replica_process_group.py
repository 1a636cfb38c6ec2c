"""The process group across groups: all or none, and nobody waits for one that is gone or has left."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from subprocess import Popen
from typing import Any

import pytest
import torch
import torch.distributed as dist
from children import children, hear, say

from replica.bridge.interrupts import AttemptOverError
from replica.bridge.process_group import CrossGroupProcessGroup, Peer

# Far below the timeouts of the collectives, far above what a busy machine needs.
AT_ONCE_S = 8.0
COLLECTIVE_S = 60.0


class Quorums:
    """A store, and one quorum after the other on it; members run on threads of this process."""

    def __init__(self) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._number = 0
        self._threads = ThreadPoolExecutor(max_workers=8)

    def address(self) -> str:
        self._number += 1
        return f"127.0.0.1:{self._store.port}/quorum-{self._number}"

    def start(self, action: Callable[[], Any]) -> Future[Any]:
        return self._threads.submit(action)

    def begin(self, *members: CrossGroupProcessGroup, missing: int = 0) -> list[Future[Any]]:
        """Configure all members for a new quorum, which also has `missing` others."""
        address, size = self.address(), len(members) + missing

        def configure(member: CrossGroupProcessGroup, rank: int) -> None:
            member.configure(address, "member", rank, size, quorum_id=self._number)

        return [
            self.start(lambda member=member, rank=rank: configure(member, rank))
            for rank, member in enumerate(members)
        ]

    def form(self, *members: CrossGroupProcessGroup) -> None:
        for configured in self.begin(*members):
            configured.result(timeout=COLLECTIVE_S)

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def quorums() -> Iterator[Quorums]:
    made = Quorums()
    yield made
    made.close()


@pytest.fixture
def member() -> Iterator[Callable[..., CrossGroupProcessGroup]]:
    """Makes members; at the end all leave, and what they left behind is waited for."""
    made: list[CrossGroupProcessGroup] = []

    def make(
        group: int, *, configure_s: float = 20.0, collective_s: float = COLLECTIVE_S, **options: Any
    ) -> CrossGroupProcessGroup:
        made.append(
            CrossGroupProcessGroup(
                group=group,
                step=lambda: 100 + group,
                advertise_addr="127.0.0.1",
                configure_timeout_s=configure_s,
                collective_timeout_s=collective_s,
                **options,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.shutdown()
    wait_for_threads("headway-graveyard", "headway-configure")


def wait_for_threads(*names: str) -> None:
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join(timeout=30)
            assert not thread.is_alive()


def error_of(future: Future[Any], limit_s: float = AT_ONCE_S) -> BaseException | None:
    """What an action ended with; fails when it has not ended by then."""
    assert wait([future], timeout=limit_s).done, f"still waiting after {limit_s:g} s"
    return future.exception()


def summed(member: CrossGroupProcessGroup, value: float) -> list[float]:
    tensor = torch.full((3,), value)
    member.sum_in_place(tensor)
    return tensor.tolist()


Make = Callable[..., CrossGroupProcessGroup]


def test_members_introduce_themselves_and_sum(quorums: Quorums, member: Make) -> None:
    members = [member(group) for group in (4, 0, 7)]
    quorums.form(*members)
    results = [
        quorums.start(lambda each=each, value=value: summed(each, value))
        for each, value in zip(members, (1.0, 2.0, 6.0), strict=True)
    ]
    expected = (Peer(group=4, step=104), Peer(group=0, step=100), Peer(group=7, step=107))
    for each, result in zip(members, results, strict=True):
        assert result.result(timeout=COLLECTIVE_S) == [9.0] * 3
        assert each.peers == expected
        assert (each.size(), each.usable, each.errored()) == (3, True, None)


def test_a_member_alone_needs_no_store(member: Make) -> None:
    alone = member(2)
    alone.configure("no-such-host.invalid:1/none", "member", 0, 1, quorum_id=9)
    assert alone.peers == (Peer(group=2, step=102),)
    assert alone.quorum_id == 9
    assert summed(alone, 5.0) == [5.0] * 3


class Declared:
    """Interrupts that a test declares."""

    def __init__(self) -> None:
        self._cause: str | None = None
        self._wakers: set[threading.Event] = set()

    def declare(self, cause: str) -> None:
        self._cause = cause
        for waker in list(self._wakers):
            waker.set()

    def over(self, quorum_id: int) -> str | None:
        return self._cause if quorum_id == 1 else None

    @contextmanager
    def waking(self, event: threading.Event) -> Iterator[None]:
        self._wakers.add(event)
        yield
        self._wakers.discard(event)


def test_an_attempt_that_is_declared_over_is_left_at_once(quorums: Quorums, member: Make) -> None:
    declared = Declared()
    # The third member neither sums nor leaves: as if it were frozen.
    told, frozen = member(0, interrupts=declared, collective_s=10.0), member(1, collective_s=10.0)
    quorums.form(told, frozen)
    waiting = quorums.start(lambda: summed(told, 1.0))
    declared.declare("group 1 is frozen")
    error = error_of(waiting)
    assert isinstance(error, AttemptOverError)
    assert str(error) == "group 1 is frozen"
    # The next quorum is another one, and works.
    other = member(2)
    quorums.form(told, other)
    results = [quorums.start(lambda each=each: summed(each, 1.0)) for each in (told, other)]
    assert [result.result(timeout=COLLECTIVE_S)[0] for result in results] == [2.0, 2.0]


def test_connecting_is_left_too_when_the_attempt_is_over(quorums: Quorums, member: Make) -> None:
    declared = Declared()
    (configured,) = quorums.begin(member(0, interrupts=declared, configure_s=6.0), missing=1)
    declared.declare("group 1 died")
    assert isinstance(error_of(configured, limit_s=3.0), AttemptOverError)


def test_what_is_done_wins_over_what_is_declared(quorums: Quorums, member: Make) -> None:
    declared = Declared()
    alone = member(0, interrupts=declared)
    declared.declare("too late")
    quorums.begin(alone)[0].result(timeout=COLLECTIVE_S)
    assert summed(alone, 5.0) == [5.0] * 3


def test_groups_that_train_different_models_do_not_sum(quorums: Quorums, member: Make) -> None:
    members = [member(0, signature=5), member(1, signature=6)]
    for configured in quorums.begin(*members):
        assert "another model" in str(error_of(configured))


def test_quorums_follow_each_other(quorums: Quorums, member: Make) -> None:
    first, second, third = (member(group) for group in range(3))
    for members in ([first, second, third], [first, third], [third], [third, second, first]):
        quorums.form(*members)
        results = [quorums.start(lambda each=each: summed(each, 1.0)) for each in members]
        assert {result.result(timeout=COLLECTIVE_S)[0] for result in results} == {float(len(members))}
        assert {each.size() for each in members} == {len(members)}


def test_before_it_is_configured_nothing_can_be_summed(member: Make) -> None:
    with pytest.raises(RuntimeError, match="not configured"):
        summed(member(0), 1.0)


def test_a_missing_member_is_an_error_within_the_limit(quorums: Quorums, member: Make) -> None:
    members = [member(group, configure_s=0.5) for group in range(2)]
    for configured in quorums.begin(*members, missing=1):
        assert isinstance(error_of(configured), TimeoutError | RuntimeError)
    assert not any(each.usable or each.peers for each in members)


def test_after_a_failed_quorum_the_next_one_works(quorums: Quorums, member: Make) -> None:
    members = [member(group, configure_s=0.5) for group in range(2)]
    for configured in quorums.begin(*members, missing=1):
        assert isinstance(error_of(configured), TimeoutError | RuntimeError)
    for each in members:
        each._configure_timeout_s = 20.0
    quorums.form(*members)
    results = [quorums.start(lambda each=each: summed(each, 1.0)) for each in members]
    assert [result.result(timeout=COLLECTIVE_S)[0] for result in results] == [2.0, 2.0]


def test_one_that_leaves_ends_the_waiting_of_all_others(quorums: Quorums, member: Make) -> None:
    members = [member(group) for group in range(3)]
    quorums.form(*members)
    waiting = [quorums.start(lambda each=each: summed(each, 1.0)) for each in members[:2]]
    members[2].shutdown()
    for result in waiting:
        assert isinstance(error_of(result), RuntimeError)
    assert not any(each.usable for each in members)


def test_one_that_loses_patience_ends_the_attempt_of_all(quorums: Quorums, member: Make) -> None:
    impatient, patient, late = member(0, collective_s=0.5), member(1), member(2)
    quorums.form(impatient, patient, late)
    first, second = (quorums.start(lambda each=each: summed(each, 1.0)) for each in (impatient, patient))
    assert isinstance(error_of(first), TimeoutError | RuntimeError)
    wait_for_threads("headway-graveyard")  # until then the late one might still get its sum
    # The late one finds the other gone, and by leaving tells the one that waits for it alone.
    with pytest.raises(RuntimeError):
        summed(late, 1.0)
    assert isinstance(error_of(second), RuntimeError)
    assert not any(each.usable for each in (impatient, patient, late))
    with pytest.raises(RuntimeError, match="not configured"):
        summed(impatient, 1.0)


def test_a_group_that_is_hard_to_destroy_does_not_hold_up_the_news_of_the_next(
    quorums: Quorums, member: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destructor of a group with a pending collective blocks; leaving the next is seen at once."""
    first, second, frozen = (member(group, collective_s=2 * AT_ONCE_S) for group in range(3))
    release = threading.Event()

    def freeze(world_size: int) -> tuple[Peer, ...]:
        release.wait(COLLECTIVE_S)
        return ()

    for each in (first, second):
        each._configure_timeout_s = 2.0
    monkeypatch.setattr(frozen, "_introduce", freeze)
    configured = quorums.begin(first, second, frozen)
    for result in configured[:2]:
        assert isinstance(error_of(result), TimeoutError | RuntimeError)
    quorums.form(first, second)
    waiting = quorums.start(lambda: summed(second, 1.0))
    first.shutdown()
    assert isinstance(error_of(waiting), RuntimeError)
    release.set()


Processes = list[Popen[str]]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Four members in processes of their own."""
    with children() as started:
        running = [started.start("cross_group_member.py", str(group)) for group in range(4)]
        assert [hear(each) for each in running] == ["up"] * 4
        yield running


def test_a_killed_process_is_seen_at_once_by_all_survivors(quorums: Quorums, processes: Processes) -> None:
    address = quorums.address()
    for rank, each in enumerate(processes):
        say(each, f"configure {address} {rank} 4")
    assert {hear(each).split()[0] for each in processes} == {"0:100,1:101,2:102,3:103"}
    for value, each in enumerate(processes):
        say(each, f"sum {value}")
    assert {hear(each).split()[0] for each in processes} == {"6.0..6.0"}
    survivors, killed = processes[:3], processes[3]
    for each in survivors:
        say(each, "sum 1")
    killed.send_signal(signal.SIGKILL)
    for answer in [hear(each).split() for each in survivors]:
        assert answer[0] == "RuntimeError"
        assert float(answer[1]) < AT_ONCE_S
    # They form the next quorum in the same processes.
    address = quorums.address()
    for rank, each in enumerate(survivors):
        say(each, f"configure {address} {rank} 3")
    assert {hear(each).split()[0] for each in survivors} == {"0:100,1:101,2:102"}
    for each in survivors:
        say(each, "sum 1")
    assert {hear(each).split()[0] for each in survivors} == {"3.0..3.0"}
