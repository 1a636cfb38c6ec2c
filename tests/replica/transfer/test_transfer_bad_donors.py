"""Donors that die, freeze, drift and lie: the state comes from elsewhere or not at all, and never wrong."""

import os
import signal
import threading
from contextlib import ExitStack

import pytest
import torch
from transfer_child import STEP, donor_process
from transfer_fetching import (
    CHUNK,
    FAST,
    MIDDLE,
    NBYTES,
    ONE,
    PATIENCE_S,
    donor_of,
    fail,
    faults,
    get,
    released,
)
from transfer_proxy import cut_at, flip_at, hold_from, once, once_told, proxy, replace, tell_at
from transfer_staged import free
from transfer_states import plain, same

from replica.transfer import (
    Cause,
    Fault,
    FetchSettings,
)
from replica.transfer.wire import AskManifest, encode


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_donor_that_dies_or_freezes_in_the_middle_is_replaced(
    stack: ExitStack, share: float, blow: signal.Signals
) -> None:
    address, pid = stack.enter_context(donor_process(1, chunk_bytes=CHUNK))
    struck = threading.Event()

    def strike() -> None:
        os.kill(pid, blow)
        struck.set()

    # The other donor sends nothing before the blow; the doomed one sends at most half of all.
    where = 2500 + int(share * MIDDLE)
    doomed = stack.enter_context(proxy(address, answers=tell_at(where, strike)))
    other = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=hold_from(2500, struck)))
    quick = FetchSettings(connections=1, stall_s=1.0, gather_s=20.0, connect_s=1.0)
    result = get(doomed, other, settings=quick)
    assert struck.is_set()
    assert same(result.tensors, plain(1))
    shares = {each.donor: each.bytes for each in result.donors}
    assert shares[other] > 0


def test_the_only_donor_killed_ends_the_fetch_and_leaves_fresh_tensors_torn(stack: ExitStack) -> None:
    address, pid = stack.enter_context(donor_process(1, chunk_bytes=CHUNK))
    kill = tell_at(MIDDLE, lambda: os.kill(pid, signal.SIGKILL))
    result = fail(stack.enter_context(proxy(address, answers=kill)), settings=ONE)
    assert result.cause is Cause.NO_DONOR
    assert result.torn
    assert "unreachable" in result.sentence


def test_without_fresh_nothing_is_torn(stack: ExitStack) -> None:
    own = plain(0)
    # Each connection ends in its first chunk.
    address = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=cut_at(3000)))
    result = fail(address, own=own, fresh=False)
    assert result.cause is Cause.NO_DONOR
    assert not result.torn
    assert same(own, plain(0))


def test_a_connection_that_breaks_again_and_again_still_gets_there(stack: ExitStack) -> None:
    address = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=cut_at(MIDDLE // 2)))
    result = get(address, settings=ONE)
    assert same(result.tensors, plain(1))
    assert faults(result) == {(address, Fault.UNREACHABLE)}


def test_one_wrong_byte_is_fetched_elsewhere_and_told_by_donor_and_tensor(stack: ExitStack) -> None:
    flips = threading.Event()
    harm = flip_at(MIDDLE // 2)

    def flip(at: int, piece: bytes) -> bytes | None:
        changed = harm(at, piece)
        if changed != piece:
            flips.set()
        return changed

    liar = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=once(flip)))
    honest = stack.enter_context(
        proxy(donor_of(stack, plain(1)).address, answers=hold_from(MIDDLE // 4, flips))
    )
    result = get(liar, honest, settings=ONE)
    assert same(result.tensors, plain(1))
    (incident,) = result.incidents
    assert (incident.donor, incident.fault) == (liar, Fault.WRONG_BYTES)
    assert incident.tensor is not None
    assert incident.tensor.startswith("weight.")
    assert "checksum" in incident.detail


def test_one_wrong_byte_of_the_only_donor_is_asked_again(stack: ExitStack) -> None:
    liar = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=once(flip_at(MIDDLE))))
    result = get(liar, settings=ONE)
    assert same(result.tensors, plain(1))
    assert faults(result) == {(liar, Fault.WRONG_BYTES)}


def test_a_donor_caught_lying_twice_is_asked_no_more(stack: ExitStack) -> None:
    liar = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=flip_at(3500)))
    result = fail(liar, settings=ONE)
    assert result.cause is Cause.NO_DONOR
    assert [incident.fault for incident in result.incidents] == [Fault.WRONG_BYTES] * 2


def test_truncated_answers_are_fetched_elsewhere(stack: ExitStack) -> None:
    short = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=cut_at(MIDDLE // 2)))
    result = get(short, donor_of(stack, plain(1)).address)
    assert same(result.tensors, plain(1))


def test_a_slow_donor_s_chunk_is_fetched_elsewhere_when_all_else_is_done(stack: ExitStack) -> None:
    never = stack.enter_context(released())
    slow = stack.enter_context(proxy(donor_of(stack, plain(1)).address, answers=hold_from(2500, never)))
    quick = FetchSettings(stall_s=0.2, chunk_s=PATIENCE_S, gather_s=20.0)
    result = get(slow, donor_of(stack, plain(1)).address, settings=quick)
    assert same(result.tensors, plain(1))
    assert faults(result) <= {(slow, Fault.STALLED), (slow, Fault.UNREACHABLE)}


def test_a_donor_that_offers_another_step_is_not_believed(stack: ExitStack) -> None:
    older = donor_of(stack, plain(2), step=STEP - 1)
    harm = replace(encode(AskManifest(step=STEP)), encode(AskManifest(step=STEP - 1)))
    liar = stack.enter_context(proxy(older.address, questions=harm))
    result = get(liar, donor_of(stack, plain(1)).address)
    assert same(result.tensors, plain(1))
    assert (liar, Fault.WRONG_STEP) in faults(result)
    alone = fail(liar)
    assert alone.cause is Cause.NO_DONOR
    assert "step 4" in alone.sentence


def test_a_donor_that_is_further_says_so(stack: ExitStack) -> None:
    result = fail(donor_of(stack, plain(1), step=STEP + 1).address)
    assert faults(result) == {(result.donors[0].donor, Fault.NEWER_STEP)}
    assert not result.torn


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (plain(1, count=7), "weight.7 exists only here"),
        (plain(1, count=9), "weight.8 exists only with the donor"),
        (plain(1, size=4095), "weight.0 is (4095,) float32 with the donor, (4096,) float32 here"),
        ({n: t.double() for n, t in plain(1).items()}, "float64 with the donor"),
    ],
)
def test_a_misfit_is_told_by_the_name_of_the_tensor(
    stack: ExitStack, other: dict[str, torch.Tensor], words: str
) -> None:
    own = plain(0)
    bad = donor_of(stack, other).address
    result = fail(bad, own=own)
    assert result.cause is Cause.MISFIT
    assert words in result.sentence
    assert not result.torn
    assert same(own, plain(0))
    assert same(get(bad, donor_of(stack, plain(1)).address).tensors, plain(1))


def test_two_donors_that_differ_are_both_refused(stack: ExitStack) -> None:
    drifted = plain(1)
    drifted["weight.3"][7] += 1
    donors = [donor_of(stack, state).address for state in (plain(1), drifted)]
    result = fail(*donors)
    assert result.cause is Cause.DISAGREEMENT
    assert faults(result) == {(donor, Fault.DRIFTED) for donor in donors}
    assert all("weight.3 (1 of 32 chunks differ)" in incident.detail for incident in result.incidents)
    assert "different values" in result.sentence


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_majority_of_three_is_followed_and_the_drifted_one_named(stack: ExitStack, place: int) -> None:
    drifted = plain(1)
    drifted["weight.3"][7] += 1
    donors = [donor_of(stack, drifted if number == place else plain(1)).address for number in range(3)]
    result = get(*donors)
    assert same(result.tensors, plain(1))
    (incident,) = result.incidents
    assert (incident.donor, incident.fault) == (donors[place], Fault.DRIFTED)
    assert "weight.3" in incident.detail


def test_a_drift_that_shows_late_is_followed_by_the_majority(stack: ExitStack) -> None:
    drifted = plain(2)
    late = [donor_of(stack, plain(1), step=STEP - 1) for _ in range(2)]

    def stage() -> None:
        for donor in late:
            donor.stage(STEP, plain(1), joiners=10)

    # The one that has drifted answers first, and its state is fetched until the others speak.
    early = stack.enter_context(proxy(donor_of(stack, drifted).address, answers=tell_at(MIDDLE, stage)))
    result = get(early, *(donor.address for donor in late), settings=ONE)
    assert same(result.tensors, plain(1))
    assert faults(result) == {(early, Fault.DRIFTED)}
    assert result.bytes == NBYTES


def test_a_copy_that_goes_away_in_the_middle_is_waited_for(stack: ExitStack) -> None:
    donor = donor_of(stack, plain(1))
    freed = tell_at(MIDDLE, lambda: free(donor._staging))
    address = stack.enter_context(proxy(donor.address, answers=freed))
    result = fail(address, settings=ONE, timeout_s=1.0)
    assert result.cause is Cause.DEADLINE
    assert (address, Fault.GONE) in faults(result)
    assert result.torn


@pytest.mark.parametrize("settings", [ONE, FAST])
def test_the_same_state_staged_again_in_the_middle_does_no_harm(
    stack: ExitStack, settings: FetchSettings
) -> None:
    donor = donor_of(stack, plain(1))

    def again() -> None:
        donor.stage(STEP, plain(1))

    address = stack.enter_context(proxy(donor.address, answers=once_told(MIDDLE // 4, again)))
    result = get(address, settings=settings)
    assert same(result.tensors, plain(1))
    assert faults(result) <= {(address, Fault.GONE)}


def test_a_donor_that_goes_on_to_the_next_step_is_lost(stack: ExitStack) -> None:
    donor = donor_of(stack, plain(1))

    def go_on() -> None:
        donor.stage(STEP + 1, plain(2))

    address = stack.enter_context(proxy(donor.address, answers=tell_at(MIDDLE, go_on)))
    result = fail(address, settings=ONE)
    assert result.cause is Cause.NO_DONOR
    assert faults(result) == {(address, Fault.GONE), (address, Fault.NEWER_STEP)}
