"""How an attempt begins: what came of a heal is written down, and where it left nothing this life ends."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from replica.averaging import ReduceFailed
from replica.bridge.manager import Start
from replica.bridge.transport import Heal, Received
from replica.errors import RestartError, UserError
from replica.ledger import EventKind
from replica.opening import LARGE_BYTES, SLOW_MB_PER_S, Opening, Turn
from replica.rounds import Peer
from replica.saves import LastSave
from replica.stopwatch import Stopwatch
from replica.transfer import Fault, Incident


class Group:
    """Stands in for a replica group: keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[EventKind, dict[str, Any]]] = []
        self.warnings: list[str] = []
        self.record = SimpleNamespace(event=lambda kind, **values: self.events.append((kind, values)))
        self.config = SimpleNamespace(digest_every=0)
        self.adopted: list[int] = []
        self.last_digest = ""
        self.stopwatch = Stopwatch()

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def adopt(self, state: dict[str, torch.Tensor], step: int) -> None:
        self.adopted.append(step)


def start_with(
    heal: Heal, *, error: str | None = None, stash: dict[str, torch.Tensor] | None = None
) -> Start:
    return Start(quorum_id=4, changed=True, peers=(), configured=True, error=error, stash=stash, heal=heal)


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def opening(group: Group) -> Opening:
    return Opening(cast(Any, group))


def test_a_donor_s_fault_is_written_down_by_its_group_and_tensor(group: Group, opening: Opening) -> None:
    incident = Incident(donor="10.0.0.7:99", fault=Fault.WRONG_BYTES, tensor="parameter.head", detail="odd")
    opening._note_incidents(start_with(Heal(incidents=[(1, incident)])))
    ((kind, values),) = group.events
    assert kind is EventKind.HEAL_INCIDENT
    assert values == {
        "donor": 1,
        "address": "10.0.0.7:99",
        "fault": "wrong_bytes",
        "tensor": "parameter.head",
        "reason": "odd",
    }


def test_a_heal_that_broke_off_half_way_ends_this_incarnation(group: Group, opening: Opening) -> None:
    with pytest.raises(RestartError, match="neither the old state nor the new"):
        opening._end_where_lost(start_with(Heal(torn=True, in_place=True), error="no donor is left"))
    assert group.events == [(EventKind.HEAL_FAILED, {"reason": "no donor is left"})]


def test_a_joiner_that_all_refuse_for_its_token_is_not_to_be_restarted(
    group: Group, opening: Opening
) -> None:
    why = "it does not know the CA of our certificate"
    incidents = [
        (0, Incident(donor="h:1", fault=Fault.REFUSED, tensor=None, detail=why)),
        (1, Incident(donor="h:2", fault=Fault.REFUSED, tensor=None, detail=why)),
        (2, Incident(donor="h:3", fault=Fault.STALLED, tensor=None, detail="gone")),
    ]
    with pytest.raises(UserError, match=rf"refuse this one \({why}\): give all groups the same --token-file"):
        opening._end_where_lost(
            start_with(Heal(refused=True, in_place=True, incidents=incidents), error="refused")
        )
    assert [kind for kind, _ in group.events] == [EventKind.HEAL_FAILED]


@pytest.mark.parametrize("heal", [Heal(), Heal(refused=True, in_place=False), Heal(in_place=True)])
def test_a_group_that_still_has_its_state_goes_on(group: Group, opening: Opening, heal: Heal) -> None:
    opening._end_where_lost(start_with(heal, error="no donor"))
    assert group.events == []


@pytest.mark.parametrize(
    ("nbytes", "rate", "warned"),
    [
        (2 * LARGE_BYTES, SLOW_MB_PER_S / 2, True),
        (2 * LARGE_BYTES, SLOW_MB_PER_S * 2, False),
        (LARGE_BYTES // 2, SLOW_MB_PER_S / 2, False),
    ],
)
def test_a_heal_is_told_with_its_rate_and_a_slow_one_is_warned_of(
    group: Group, opening: Opening, nbytes: int, rate: float, warned: bool
) -> None:
    received = Received(step=9, groups=(0, 2), bytes=nbytes, seconds=nbytes / rate / 1e6)
    opening._adopt(start_with(Heal(received=received), stash={}), 9)
    ((kind, values),) = group.events
    assert kind is EventKind.HEAL
    assert (values["bytes"], values["mb_per_s"], values["healed_from"]) == (nbytes, rate, (0, 2))
    assert values["seconds"] == received.seconds
    assert group.adopted == [9]
    assert bool(group.warnings) is warned
    assert not warned or f"came at {rate:.0f} MB/s" in group.warnings[0]


class Closing(Group):
    """A group that has the last step, number 9; `reduced` is what the wait for the others gives."""

    def __init__(self, reduced: object, *, last: LastSave | None = None) -> None:
        super().__init__()
        self.step = 9
        self.config = SimpleNamespace(group=1)
        self.order: list[object] = []
        self.saves = None
        if last is not None:
            self.saves = SimpleNamespace(at_the_end=lambda *what: self.order.append(what) or last, last=last)
        self.sum = SimpleNamespace(reduce=lambda *args, **kwargs: self.order.append("reduce") or reduced)
        self.bridge = SimpleNamespace(process_group=None)
        self.stopwatch = SimpleNamespace(time=lambda doing: nullcontext())
        self.ranks = SimpleNamespace(share=lambda values: [tuple(values), (False,)])


def close(group: Closing, *, changed: bool = True) -> Turn:
    peers = (Peer(group=0, step=8), Peer(group=1, step=9), Peer(group=2, step=9))
    return Opening(cast(Any, group))._close(
        Start(quorum_id=4, changed=changed, peers=peers, configured=True, error=None)
    )


def test_the_last_state_is_durable_before_the_others_are_let_go() -> None:
    group = Closing(object(), last=LastSave.DURABLE)
    assert close(group) is Turn.LEAVE
    # Group 0 had come to heal: it may have failed, and does not count as one that can save.
    assert group.order == [(4, [1, 2]), "reduce"]


def test_all_members_of_an_unchanged_quorum_have_the_last_state() -> None:
    group = Closing(object(), last=LastSave.DURABLE)
    close(group, changed=False)
    assert group.order[0] == (4, [0, 1, 2])


@pytest.mark.parametrize(
    ("last", "turn"), [(LastSave.ATTEMPT_OVER, Turn.AGAIN), (LastSave.IN_VAIN, Turn.LEAVE)]
)
def test_without_the_last_save_nobody_waits_for_the_others(last: LastSave, turn: Turn) -> None:
    group = Closing(object(), last=last)
    assert close(group) is turn
    assert "reduce" not in group.order


@pytest.mark.parametrize("last", [LastSave.DURABLE, None])
def test_one_that_is_gone_when_all_is_safe_is_no_trouble(last: LastSave | None) -> None:
    assert close(Closing(ReduceFailed(error="group 0 left"), last=last)) is Turn.LEAVE


def test_one_that_has_just_healed_may_go_when_the_others_do() -> None:
    group = Closing(object(), last=LastSave.UNKNOWN)
    assert close(group) is Turn.LEAVE
    assert cast(Any, group.saves).last is LastSave.DURABLE


def test_one_that_has_just_healed_and_hears_no_more_sees_to_the_last_save_itself() -> None:
    group = Closing(ReduceFailed(error="group 0 died"), last=LastSave.UNKNOWN)
    assert close(group) is Turn.AGAIN
    assert cast(Any, group.saves).last is LastSave.UNKNOWN


def test_what_one_rank_has_not_heard_none_takes_for_granted() -> None:
    group = Closing(object(), last=LastSave.UNKNOWN)
    group.ranks = SimpleNamespace(share=lambda values: [tuple(values), (True,)])
    assert close(group) is Turn.AGAIN
    assert cast(Any, group.saves).last is LastSave.UNKNOWN


class Asked(Closing):
    """Group 1, asked to leave; a quorum of its own is there when it asks for one."""

    def __init__(self, step: int) -> None:
        super().__init__(object(), last=LastSave.DURABLE)
        self.step = step
        self.config = SimpleNamespace(group=1, steps=9, digest_every=0)
        self.notices = SimpleNamespace(
            draining=True, raise_if_ended=lambda: None, asking=lambda: nullcontext()
        )
        self.ranks = SimpleNamespace(share=lambda values: [tuple(values)])
        self.failures = SimpleNamespace(pause_s=0.0)
        self.quorum_wait = SimpleNamespace(waiting=lambda: nullcontext())
        self.stream = SimpleNamespace(progress=lambda step, phase: None)
        self.stopwatch = SimpleNamespace(time=lambda doing: nullcontext(), begin_attempt=lambda: None)
        self.record = SimpleNamespace(group_event=lambda kind, **values: None)
        self.rounds = 4
        self.sum = SimpleNamespace(
            held=frozenset(), reduce=lambda *args, **kwargs: self.order.append("reduce")
        )
        peers = (Peer(group=1, step=step),)
        start = Start(quorum_id=4, changed=True, peers=peers, configured=True, error=None)
        self.bridge = SimpleNamespace(process_group=None, begin=lambda: start)


def test_asked_to_leave_it_does_so_between_two_steps() -> None:
    group = Asked(step=5)
    assert Opening(cast(Any, group)).next_turn() is Turn.LEAVE
    assert group.order == []


def test_asked_to_leave_in_the_last_step_it_still_sees_that_it_is_saved() -> None:
    group = Asked(step=9)
    assert Opening(cast(Any, group)).next_turn() is Turn.LEAVE
    assert group.order == [(4, [1]), "reduce"]
