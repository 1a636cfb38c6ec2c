"""The staged copy: one at a time, what was staged is what is offered, and it is freed in time."""

import gc
import threading
import weakref
from collections.abc import Iterator, Mapping

import pytest
import torch
import xxhash
from transfer_staged import free, held_bytes, wait_freed
from transfer_states import bits, plain

import replica.transfer.staging
from replica.transfer.manifest import Layout, Limits, Manifest, decode
from replica.transfer.memory import copy_out
from replica.transfer.staging import Staging
from replica.transfer.wire import Code, Refusal

CHUNK = 1 << 12
PATIENCE_S = 30.0


@pytest.fixture
def staging() -> Iterator[Staging]:
    made = Staging(chunk_bytes=CHUNK, hold_s=600)
    yield made
    made.close()


def manifest_of(staging: Staging, step: int) -> Manifest:
    """The manifest, once the checksums are there."""
    with staging._changed:
        assert staging._changed.wait_for(lambda: isinstance(staging.manifest(step), bytes), PATIENCE_S)
    body = staging.manifest(step)
    assert isinstance(body, bytes)
    manifest = decode(body, Limits(tensors=100, nbytes=1 << 30))
    assert isinstance(manifest, Manifest)
    return manifest


def code(answer: object) -> Code:
    assert isinstance(answer, Refusal)
    return answer.code


def test_what_was_staged_is_offered_with_its_checksums(staging: Staging) -> None:
    state = plain(1)
    staging.put(5, state, joiners=1)
    whole = b"".join(bits(tensor) for tensor in state.values())
    for tensor in state.values():
        tensor.zero_()  # the donor trains on
    manifest = manifest_of(staging, 5)
    assert manifest.step == 5
    assert held_bytes(staging) == len(whole)
    arrived = b""
    for chunk, digest in enumerate(manifest.digests):
        data = staging.chunk(manifest.state_id, chunk)
        assert isinstance(data, memoryview)
        assert xxhash.xxh3_64_digest(data) == digest
        arrived += bytes(data)
    assert arrived == whole
    assert code(staging.chunk(manifest.state_id, len(manifest.digests))) is Code.MALFORMED


def test_other_steps_and_states_are_told_apart(staging: Staging) -> None:
    assert code(staging.manifest(5)) is Code.NOT_STAGED
    staging.put(5, plain(1), joiners=1)
    manifest = manifest_of(staging, 5)
    assert code(staging.manifest(6)) is Code.NOT_STAGED
    assert code(staging.manifest(4)) is Code.WRONG_STEP
    assert code(staging.chunk(b"x" * 16, 0)) is Code.GONE
    free(staging)
    assert code(staging.chunk(manifest.state_id, 0)) is Code.GONE
    assert code(staging.manifest(4)) is Code.WRONG_STEP
    assert code(staging.manifest(5)) is Code.NOT_STAGED  # it may be staged again for the next joiner


def test_the_next_copy_replaces_the_last(staging: Staging) -> None:
    staging.put(5, plain(1), joiners=1)
    first = manifest_of(staging, 5)
    staging.put(6, plain(2), joiners=1)
    second = manifest_of(staging, 6)
    assert code(staging.chunk(first.state_id, 0)) is Code.GONE
    assert isinstance(staging.chunk(second.state_id, 0), memoryview)


def test_the_last_copy_is_gone_before_the_next_is_made(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging.put(5, plain(1), joiners=1)
    manifest_of(staging, 5)
    last = weakref.ref(staging._copy)

    def copy_when_gone(tensors: Mapping[str, torch.Tensor], layout: Layout) -> torch.Tensor:
        pause = threading.Event()
        for _ in range(1000):
            if last() is None:
                return copy_out(tensors, layout)
            pause.wait(0.01)
        raise AssertionError("two copies at once")

    monkeypatch.setattr(replica.transfer.staging, "copy_out", copy_when_gone)
    staging.put(6, plain(2), joiners=1)


def test_it_is_freed_when_the_last_expected_joiner_has_it(staging: Staging) -> None:
    staging.put(5, plain(1), joiners=2)
    manifest = manifest_of(staging, 5)
    copy = weakref.ref(staging._copy)
    staging.finished(manifest.state_id, b"one")
    staging.finished(manifest.state_id, b"one")
    staging.finished(b"x" * 16, b"two")
    assert held_bytes(staging)
    staging.finished(manifest.state_id, b"two")
    assert held_bytes(staging) == 0
    gc.collect()
    assert copy() is None  # nothing else holds its memory


def test_it_is_freed_when_its_time_is_up() -> None:
    staging = Staging(chunk_bytes=CHUNK, hold_s=0.05)
    staging.put(5, plain(1), joiners=1)
    copy = weakref.ref(staging._copy)
    assert wait_freed(staging, PATIENCE_S)
    assert held_bytes(staging) == 0
    staging.close()
    gc.collect()
    assert copy() is None


def test_a_chunk_that_is_being_sent_outlives_the_copy(staging: Staging) -> None:
    state = plain(1)
    staging.put(5, state, joiners=1)
    data = staging.chunk(manifest_of(staging, 5).state_id, 0)
    free(staging)
    assert isinstance(data, memoryview)
    assert bytes(data) == bits(state["weight.0"])[:CHUNK]


def test_an_empty_state_can_be_staged(staging: Staging) -> None:
    staging.put(5, {}, joiners=1)
    manifest = manifest_of(staging, 5)
    assert manifest.digests == ()


def test_closing_ends_its_thread_and_takes_no_more() -> None:
    before = threading.active_count()
    staging = Staging(chunk_bytes=CHUNK, hold_s=600)
    staging.put(5, plain(1), joiners=1)
    staging.close()
    staging.close()
    staging.put(6, plain(1), joiners=1)
    assert held_bytes(staging) == 0
    assert threading.active_count() == before
