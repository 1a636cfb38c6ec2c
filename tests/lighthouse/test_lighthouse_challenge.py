"""Nonces cannot be forged, are good once and not for long; a proof needs the token, method and nonce."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse import challenge
from lighthouse.challenge import (
    KEY_BYTES,
    NONCE_LIFE_S,
    SALT_BYTES,
    Nonces,
    credentials,
    proof_of,
    read_credentials,
)

SALT = b"s" * SALT_BYTES


def nonces() -> Nonces:
    return Nonces(b"k" * KEY_BYTES)


def test_a_nonce_is_good_once() -> None:
    mine = nonces()
    nonce = mine.issue(SALT, 5.0)
    assert mine.is_good(nonce, 6.0)
    assert mine.is_good(nonce, 6.0)  # it was looked at, and not used
    assert mine.spend(nonce, 6.0)
    assert not mine.is_good(nonce, 6.0)


def test_a_nonce_is_not_good_for_long() -> None:
    mine = nonces()
    nonce = mine.issue(SALT, 5.0)
    assert mine.is_good(nonce, 5.0 + NONCE_LIFE_S)
    assert not mine.is_good(nonce, 5.1 + NONCE_LIFE_S)


@given(st.integers(0, 39), st.integers(1, 255))
def test_a_nonce_that_was_altered_anywhere_is_none(at: int, flip: int) -> None:
    mine = nonces()
    nonce = bytearray(mine.issue(SALT, 5.0))
    nonce[at] ^= flip
    assert not mine.is_good(bytes(nonce), 5.0)


@given(st.binary(max_size=60))
def test_bytes_are_no_nonce(data: bytes) -> None:
    assert not nonces().is_good(data, 0.0)


def test_a_nonce_of_an_earlier_server_is_none() -> None:
    assert not Nonces(b"o" * KEY_BYTES).is_good(nonces().issue(SALT, 5.0), 5.0)


def test_what_was_used_is_forgotten_once_it_is_too_old_and_there_is_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(challenge, "MAX_SPENT", 50)
    mine = nonces()
    for number in range(50):
        assert mine.spend(mine.issue(number.to_bytes(SALT_BYTES), 5.0), 5.0)
    one_more = mine.issue(SALT, 6.0)
    assert not mine.spend(one_more, 6.0)
    assert mine.spend(one_more, 5.1 + NONCE_LIFE_S)
    assert len(mine._spent) == 1


TEXTS = st.binary(min_size=1, max_size=20)


@given(TEXTS, TEXTS, TEXTS)
def test_a_proof_needs_the_token_the_method_and_the_nonce(token: bytes, other: bytes, nonce: bytes) -> None:
    proof = proof_of(token, method="Evict", nonce=nonce)
    # HMAC pads a key with zeros: keys that differ only in zeros at their end are one key.
    same = token.rstrip(b"\0") == other.rstrip(b"\0")
    assert (proof_of(other, method="Evict", nonce=nonce) == proof) == same
    assert proof_of(token, method="Drain", nonce=nonce) != proof
    assert proof_of(token, method="Evict", nonce=nonce + b"x") != proof


@given(TEXTS, TEXTS)
def test_credentials_are_read_back(token: bytes, nonce: bytes) -> None:
    text = credentials(token, method="Leave", nonce=nonce)
    assert read_credentials(text) == (nonce, proof_of(token, method="Leave", nonce=nonce))


@given(st.text(max_size=50))
def test_other_words_are_no_credentials(text: str) -> None:
    assert read_credentials(f"Bearer {text}") is None
    assert read_credentials(f"Headway {text} xy") is None
