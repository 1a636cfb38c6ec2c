"""A joiner over real sockets: it ends with the state, every byte of it right, or says why not."""

import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from transfer_child import STEP, extra_memory
from transfer_fetching import (
    CHUNK,
    MIDDLE,
    NBYTES,
    ONE,
    PATIENCE_S,
    donor_of,
    fail,
    faults,
    get,
    released,
    try_fetch,
)
from transfer_proxy import hold_from, proxy, tell_at
from transfer_staged import wait_freed
from transfer_states import every_kind, plain, same

from replica.transfer import (
    Cause,
    Donor,
    Fault,
    Fetched,
    FetchSettings,
    NotFetched,
    fetch,
)
from replica.transfer.manifest import Limits

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


# With good donors.


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_every_kind_of_tensor_arrives(stack: ExitStack, fresh: bool, count: int) -> None:
    sent = every_kind()
    donors = [donor_of(stack, sent).address for _ in range(count)]
    own = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    result = get(*donors, own=own, fresh=fresh)
    assert same(result.tensors, sent)
    assert same(own, sent) == fresh
    assert result.step == STEP
    assert result.bytes == sum(share.bytes for share in result.donors)
    assert result.bytes == sum(tensor.nbytes for tensor in sent.values())
    assert result.incidents == ()
    assert result.mb_per_s > 0
    assert all(result.tensors[name] is own[name] or not fresh for name in own)


@pytest.mark.parametrize(
    "state", [{}, {"none": torch.zeros(0, 3)}, {"one": torch.tensor(4, dtype=torch.int8)}]
)
def test_small_states_arrive(stack: ExitStack, state: dict[str, torch.Tensor]) -> None:
    own = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert same(get(donor_of(stack, state).address, own=own).tensors, state)


def test_a_joiner_that_knows_nothing_beforehand_takes_what_fits_its_limits(stack: ExitStack) -> None:
    address = donor_of(stack, every_kind()).address
    given: dict[str, Any] = {"step": STEP, "fresh": False, "timeout_s": PATIENCE_S}
    result = fetch([address], expected=Limits(tensors=100, nbytes=1 << 20), **given)
    assert isinstance(result, Fetched)
    assert same(result.tensors, every_kind())
    little = fetch([address], expected=Limits(tensors=3, nbytes=1 << 20), **given)
    assert isinstance(little, NotFetched)
    assert "more than 3" in little.sentence


def test_both_donors_send_a_part(stack: ExitStack) -> None:
    sends = threading.Event()
    slow = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=hold_from(MIDDLE, sends)))
    # The first donor can send no more than half before the second has sent something.
    quick = donor_of(stack, plain(1)).address
    other = stack.enter_context(proxy(quick, answers=tell_at(CHUNK * 3, sends.set)))
    result = get(slow, other, settings=ONE)
    assert same(result.tensors, plain(1))
    assert all(share.bytes > 0 and share.mb_per_s > 0 for share in result.donors)
    assert sum(share.bytes for share in result.donors) == NBYTES


def test_four_joiners_and_two_donors_and_then_the_copies_are_freed(stack: ExitStack) -> None:
    donors = [donor_of(stack, plain(1), joiners=4) for _ in range(2)]
    results: list[Fetched | NotFetched] = []
    threads = [
        threading.Thread(target=lambda: results.append(try_fetch(*(donor.address for donor in donors))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(result, Fetched) and same(result.tensors, plain(1)) for result in results)
    assert len(results) == 4
    assert all(wait_freed(donor._staging, PATIENCE_S) for donor in donors)


def test_a_joiner_waits_for_a_donor_that_has_not_staged_yet(stack: ExitStack) -> None:
    donor = donor_of(stack, plain(3), step=STEP - 1)
    # The state is staged once the joiner has been told that it is not, and asks again.
    asked = tell_at(120, lambda: donor.stage(STEP, plain(1)))
    address = stack.enter_context(proxy(donor.address, questions=asked))
    assert same(get(address).tensors, plain(1))


def test_the_threads_of_a_fetch_end_with_it(stack: ExitStack) -> None:
    donor = donor_of(stack, plain(1))
    get(donor.address)
    deadline = time.monotonic() + PATIENCE_S
    for thread in threading.enumerate():
        if thread.name.startswith("headway-joiner"):
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive()


def test_a_donor_needs_one_more_state_in_memory_and_a_fresh_joiner_hardly_any() -> None:
    size = 3 << 20
    nbytes = 8 * size * 4  # 100 MB
    donor, joiner = extra_memory(size)
    assert donor < 1.1 * nbytes
    assert joiner < nbytes / 4


# Tokens.


@pytest.mark.parametrize(
    ("donor_s", "joiner_s", "fits"),
    [(b"one", b"one", True), (b"one", b"other", False), (b"one", b"", False), (b"", b"one", False)],
)
def test_the_token_must_be_the_job_s(stack: ExitStack, donor_s: bytes, joiner_s: bytes, fits: bool) -> None:
    donor = stack.enter_context(Donor(bind="127.0.0.1", token=donor_s))
    donor.stage(STEP, plain(1))
    if fits:
        assert same(get(donor.address, token=joiner_s).tensors, plain(1))
        return
    result = fail(donor.address, token=joiner_s)
    assert result.cause is Cause.REFUSED
    assert faults(result) == {(donor.address, Fault.REFUSED)}
    assert "same token, same CA?" in result.sentence
    assert not result.torn


def test_a_donor_with_another_token_is_left_out_and_the_others_give_all(stack: ExitStack) -> None:
    foreign = stack.enter_context(Donor(bind="127.0.0.1", token=b"other"))
    own = stack.enter_context(Donor(bind="127.0.0.1", token=b"one"))
    foreign.stage(STEP, plain(2))  # a drifted one, if its word counted
    own.stage(STEP, plain(1))
    result = get(foreign.address, own.address, token=b"one")
    assert same(result.tensors, plain(1))
    assert faults(result) == {(foreign.address, Fault.REFUSED)}
    assert all("token" in incident.detail for incident in result.incidents)


def test_the_token_is_never_on_the_wire(stack: ExitStack) -> None:
    token, seen = b"a secret of this job", []

    def note(at: int, piece: bytes) -> bytes:
        seen.append(piece)
        return piece

    donor = stack.enter_context(Donor(bind="127.0.0.1", token=token))
    donor.stage(STEP, plain(1))
    address = stack.enter_context(proxy(donor.address, answers=note, questions=note))
    get(address, token=token)
    assert seen
    assert token not in b"".join(seen)


# Ends.


def test_without_donors_there_is_no_state() -> None:
    result = fail()
    assert result.cause is Cause.NO_DONOR
    assert "there is none" in result.sentence


def test_nothing_staged_until_the_deadline_is_told(stack: ExitStack) -> None:
    donor = donor_of(stack, plain(1), step=STEP - 1)
    result = fail(donor.address, timeout_s=0.2)
    assert result.cause is Cause.DEADLINE
    assert "step 5 is not staged yet" in result.sentence
    assert not result.torn


def test_an_interrupt_ends_it_soon_and_nothing_is_written_after(stack: ExitStack) -> None:
    middle = threading.Event()
    resume = stack.enter_context(released())

    def hold(at: int, piece: bytes) -> bytes:
        if at + len(piece) > MIDDLE // 2:
            middle.set()
            resume.wait(PATIENCE_S)
        return piece

    own = plain(0)
    address = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=hold))
    result = fail(address, own=own, interrupted=lambda torn: middle.is_set())
    assert result.cause is Cause.INTERRUPTED
    assert result.torn
    assert result.seconds < PATIENCE_S / 4
    kept = {name: tensor.clone() for name, tensor in own.items()}
    resume.set()
    for thread in threading.enumerate():
        if thread.name.startswith("headway-joiner"):
            thread.join(PATIENCE_S)
    assert same(own, kept)


def test_an_error_of_the_caller_s_own_ends_the_fetch(stack: ExitStack) -> None:
    donor = donor_of(stack, plain(1), step=STEP - 1)

    def broken(torn: bool) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        try_fetch(donor.address, interrupted=broken)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        FetchSettings(stall_s=0)
    with pytest.raises(ValueError, match="at least 1"):
        FetchSettings(connections=0)
