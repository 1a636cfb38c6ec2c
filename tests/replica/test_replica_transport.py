"""Heals between transports under torchft's interface: from all that have the state, or not at all."""

import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta

import pytest
import torch

from lighthouse.access import Access
from replica.bridge.transport import NO_ATTEMPT, HealFailedError, HealTransport
from replica.rounds import Peer
from replica.transfer import Fault, Served

STEP = 7
LONG = timedelta(seconds=30)
TOKEN = b"the secret of this job"


def state(fill: float) -> dict[str, torch.Tensor]:
    """Tensors of kinds that a sharded state has: matrices, scalars, empty shards, half precision."""
    return {
        "a": torch.full((300, 7), fill),
        "b": torch.tensor(fill),
        "c": torch.empty(0, 5),
        "d": torch.full((3,), fill, dtype=torch.bfloat16),
    }


class Interrupts:
    """Says that the attempt is over once it is told so."""

    def __init__(self) -> None:
        self.cause: str | None = None
        self.newest_over = NO_ATTEMPT - 1

    def over(self, quorum_id: int) -> str | None:
        return self.cause if quorum_id <= self.newest_over else None

    def waking(self, event: threading.Event) -> object:
        raise AssertionError("a heal asks by itself")


class Member:
    """A group's transport in a quorum of which it is told the members."""

    def __init__(
        self, group: int, step: int, fill: float, *, equal_bits: bool = True, token: bytes = TOKEN
    ) -> None:
        self.group, self.step = group, step
        self.tensors = state(fill)
        self.peers: tuple[Peer, ...] = ()
        self.quorum_id = 1
        self.served: list[Served] = []
        self.fetches = 0
        self.interrupts = Interrupts()
        self.transport = HealTransport(
            timeout_s=20.0,
            advertise_addr="127.0.0.1",
            own=lambda: self.tensors,
            fresh=lambda: self.step == 0,
            on_served=self.served.append,
            access=Access(token=token),
            on_fetch=self.count,
            interrupts=self.interrupts,  # type: ignore[arg-type]
            quorum_id=lambda: self.quorum_id,
            peers=lambda: self.peers,
            group=group,
            equal_bits=equal_bits,
        )

    def count(self) -> None:
        self.fetches += 1

    @property
    def peer(self) -> Peer:
        return Peer(group=self.group, step=self.step, address=self.transport.address)

    def heal(self, named: "Member") -> Mapping[str, torch.Tensor]:
        """What torchft asks for: the state of STEP, from the donor that it names."""
        answer = self.transport.recv_checkpoint(0, named.transport.metadata(), STEP, LONG)
        assert answer["torchft"] == {"step": STEP, "batches_committed": 0}
        received: dict[str, torch.Tensor] = answer["user"]["default"]
        return received


@pytest.fixture
def quorum() -> Iterator[list[Member]]:
    """Two groups at STEP and one that has just started."""
    members = [Member(0, STEP, 1.0), Member(1, STEP, 1.0), Member(2, 0, 0.0)]
    for member in members:
        member.peers = tuple(each.peer for each in members)
    yield members
    for member in members:
        member.transport.shutdown()


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_joiner_gets_the_state_of_its_donors_into_its_own_tensors(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    first.transport.send_checkpoint([2], STEP, {}, LONG)
    second.transport.stage_for_joiners(STEP)
    received = joiner.heal(named=first)
    assert same(received, state(1.0))
    assert received["a"].data_ptr() == joiner.tensors["a"].data_ptr()
    heal = joiner.transport.heal
    assert heal.received is not None
    assert heal.received.step == STEP
    assert heal.received.bytes == sum(each.nbytes for each in state(1.0).values())
    assert set(heal.received.groups) <= {0, 1}
    assert heal.received.groups
    assert (heal.torn, heal.incidents, joiner.fetches) == (False, [], 1)


def test_a_group_with_a_state_of_its_own_keeps_it_until_the_new_one_is_adopted(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    joiner.step = 3
    first.transport.stage(STEP, joiners=1)
    second.transport.stage(STEP, joiners=1)
    assert same(joiner.heal(named=first), state(1.0))
    assert same(joiner.tensors, state(0.0))


def test_what_arrives_is_what_was_staged_though_the_donor_trains_on(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    for donor in (first, second):
        donor.transport.stage(STEP, joiners=1)
        donor.tensors["a"].fill_(5.0)
    assert same(joiner.heal(named=first), state(1.0))


def test_a_state_is_staged_once_in_a_quorum_and_anew_in_the_next(quorum: list[Member]) -> None:
    first, _, joiner = quorum
    joiner.peers = first.peers = (first.peer, joiner.peer)
    first.transport.stage(STEP, joiners=1)
    first.tensors["a"].fill_(5.0)
    first.transport.stage(STEP, joiners=1)
    assert joiner.heal(named=first)["a"][0, 0] == 1.0
    first.quorum_id = 2
    first.transport.stage_for_joiners(STEP)
    assert joiner.heal(named=first)["a"][0, 0] == 5.0


def test_nothing_is_staged_where_nobody_is_behind_or_the_own_state_is_old(quorum: list[Member]) -> None:
    first, _, joiner = quorum
    joiner.transport.stage_for_joiners(0)
    assert joiner.transport._donor._staging._copy is None
    first.peers = tuple(Peer(group=group, step=STEP) for group in range(2))
    first.transport.stage_for_joiners(STEP)
    assert first.transport._donor._staging._copy is None


def test_a_donor_that_is_gone_is_named_and_the_other_gives_all(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    first.transport.shutdown()
    second.transport.stage_for_joiners(STEP)
    assert same(joiner.heal(named=first), state(1.0))
    heal = joiner.transport.heal
    assert heal.received is not None
    assert heal.received.groups == (1,)
    assert {(group, each.fault) for group, each in heal.incidents} == {(0, Fault.UNREACHABLE)}


def test_a_joiner_that_knows_no_members_asks_the_donor_that_it_is_told(quorum: list[Member]) -> None:
    first, _, joiner = quorum
    joiner.peers = ()
    first.transport.stage(STEP, joiners=1)
    assert same(joiner.heal(named=first), state(1.0))


def test_no_donor_left_is_an_error_with_a_sentence_and_leaves_the_tensors_whole(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    for donor in (first, second):
        donor.transport.stage(STEP, joiners=1)
        donor.transport.shutdown()
    with pytest.raises(HealFailedError, match="no donor is left"):
        joiner.heal(named=first)
    assert not joiner.transport.heal.torn
    assert same(joiner.tensors, state(0.0))


def test_another_model_is_refused_by_the_name_of_a_tensor(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    joiner.tensors["a"] = torch.zeros(2, 2)
    for donor in (first, second):
        donor.transport.stage(STEP, joiners=1)
    with pytest.raises(HealFailedError, match="does not fit"):
        joiner.heal(named=first)
    assert all(each.detail.startswith("a ") for _, each in joiner.transport.heal.incidents)


def test_states_that_have_drifted_apart_are_not_adopted(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    second.tensors["a"][0, 0] = 9.0
    for donor in (first, second):
        donor.transport.stage(STEP, joiners=1)
    with pytest.raises(HealFailedError, match="different values"):
        joiner.heal(named=first)


def test_a_heal_ends_when_the_attempt_is_over(quorum: list[Member]) -> None:
    first, _, joiner = quorum  # nobody stages: the joiner would wait
    timer = threading.Timer(0.1, lambda: setattr(joiner.interrupts, "cause", "group 0 died"))
    timer.start()
    with pytest.raises(HealFailedError, match="interrupted"):
        joiner.heal(named=first)
    timer.join()


def test_a_heal_that_has_begun_in_place_is_finished_though_the_attempt_is_over(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    second.transport.stage(STEP, joiners=1)
    written = threading.Event()

    def begin_late() -> None:
        # The first donor has died: what its share was comes from the second one.
        first.transport.shutdown()
        joiner.interrupts.cause = "group 0 died"
        written.set()

    over = joiner.interrupts.over

    def over_once_torn(quorum_id: int) -> str | None:
        if quorum_id == NO_ATTEMPT and not written.is_set():
            begin_late()
        return over(quorum_id)

    joiner.interrupts.over = over_once_torn  # type: ignore[method-assign]
    joiner.tensors = {"big": torch.zeros(40_000_000)}
    second.tensors = {"big": torch.ones(40_000_000)}
    second.transport._staged_for = None
    second.transport.stage(STEP, joiners=1)
    assert same(joiner.heal(named=second), second.tensors)
    assert written.is_set()
    assert joiner.interrupts.cause is not None


def test_what_ends_this_incarnation_ends_a_heal_in_place_too(quorum: list[Member]) -> None:
    first, second, joiner = quorum
    joiner.tensors = {"big": torch.zeros(40_000_000)}
    for donor in (first, second):
        donor.tensors = {"big": torch.ones(40_000_000)}
        donor.transport.stage(STEP, joiners=1)
    joiner.interrupts.newest_over = NO_ATTEMPT

    def end_once_torn(quorum_id: int) -> str | None:
        return "evicted" if quorum_id == NO_ATTEMPT else None

    joiner.interrupts.over = end_once_torn  # type: ignore[method-assign]
    with pytest.raises(HealFailedError, match="interrupted"):
        joiner.heal(named=first)
    assert joiner.transport.heal.torn


def test_a_donor_tells_what_it_served(quorum: list[Member]) -> None:
    first, _, joiner = quorum
    joiner.peers = first.peers = (first.peer, joiner.peer)
    first.transport.stage(STEP, joiners=1)
    joiner.heal(named=first)
    first.transport.shutdown()
    assert sum(each.bytes for each in first.served) == sum(each.nbytes for each in state(1.0).values())
    assert {each.step for each in first.served} == {STEP}


@pytest.mark.parametrize("token", [b"", b"the secret of another job"])
def test_a_joiner_without_the_job_s_token_gets_nothing(quorum: list[Member], token: bytes) -> None:
    first, second, _ = quorum
    joiner = Member(3, 0, 0.0, token=token)
    joiner.peers = first.peers = second.peers = (first.peer, second.peer, joiner.peer)
    for donor in (first, second):
        donor.transport.stage(STEP, joiners=1)
    with pytest.raises(HealFailedError, match="same token, same CA"):
        joiner.heal(named=first)
    heal = joiner.transport.heal
    assert (heal.refused, heal.torn, heal.received) == (True, False, None)
    assert {(group, each.fault) for group, each in heal.incidents} == {(0, Fault.REFUSED), (1, Fault.REFUSED)}
    assert same(joiner.tensors, state(0.0))
    assert not first.served
    joiner.transport.shutdown()


def test_a_donor_with_another_token_is_told_by_its_group_and_the_other_gives_all(
    quorum: list[Member],
) -> None:
    first, _, joiner = quorum
    foreign = Member(3, STEP, 2.0, token=b"the secret of another job")
    joiner.peers = first.peers = foreign.peers = (foreign.peer, first.peer, joiner.peer)
    for donor in (first, foreign):
        donor.transport.stage(STEP, joiners=1)
    assert same(joiner.heal(named=foreign), state(1.0))
    heal = joiner.transport.heal
    assert {(group, each.fault) for group, each in heal.incidents} == {(3, Fault.REFUSED)}
    assert not heal.refused
    foreign.transport.shutdown()


def test_where_bits_may_differ_the_first_donor_counts(quorum: list[Member]) -> None:
    first, second, _ = quorum
    joiner = Member(3, 0, 0.0, equal_bits=False)
    joiner.peers = first.peers = second.peers = (first.peer, second.peer, joiner.peer)
    second.tensors["a"][0, 0] = 9.0
    for donor in (first, second):
        donor.transport.stage(STEP, joiners=2)
    assert same(joiner.heal(named=first), state(1.0))
    joiner.transport.shutdown()


def test_a_joiner_never_offers_its_old_state_as_the_new_one(quorum: list[Member]) -> None:
    _, _, joiner = quorum
    joiner.transport.stage_for_joiners(STEP)  # as torchft counts it, it is at the new step already
    assert joiner.transport._donor._staging._copy is None


def test_a_donor_that_cannot_copy_its_state_goes_on_without(
    quorum: list[Member], caplog: pytest.LogCaptureFixture
) -> None:
    first, second, joiner = quorum
    first.tensors["a"] = torch.zeros(2, 2).to_sparse()
    first.transport.stage_for_joiners(STEP)
    first.transport.send_checkpoint([2], STEP, {}, LONG)
    assert "group 0 cannot give its state to joiners" in caplog.text
    second.transport.stage_for_joiners(STEP)
    joiner.peers = (second.peer, joiner.peer)
    assert same(joiner.heal(named=second), state(1.0))


def test_it_listens_on_the_advertised_interface_where_that_is_one_of_this_host() -> None:
    for advertised in ("127.0.0.9", "192.0.2.1"):
        transport = HealTransport(
            timeout_s=1.0,
            advertise_addr=advertised,
            own=dict,
            fresh=lambda: True,
            on_served=lambda served: None,
        )
        assert transport.address.startswith(f"{advertised}:")
        bound = transport._donor._listener.getsockname()[0]
        assert bound == (advertised if advertised.startswith("127.") else "::")
        transport.shutdown()
