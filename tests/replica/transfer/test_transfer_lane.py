"""The talk with one donor: what a donor must not say is told, costs it its standing, and runs nothing."""

import contextlib
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transfer_states import plain

from replica.transfer import Cause, Fault, FetchSettings, NotFetched, fetch
from replica.transfer.line import Line, LineError, admit
from replica.transfer.manifest import Layout, Manifest
from replica.transfer.memory import specs_of
from replica.transfer.wire import AskManifest, Kind, ManifestIs, Message

STEP = 5
CHUNK = 1 << 12
PATIENCE_S = 60.0


def fail(address: str) -> NotFetched:
    chosen = FetchSettings(connections=1, stall_s=20.0)
    result = fetch([address], step=STEP, expected=plain(0), fresh=True, timeout_s=PATIENCE_S, settings=chosen)
    assert isinstance(result, NotFetched)
    return result


@contextlib.contextmanager
def scripted(script: Callable[[Line], None], *, token: bytes = b"") -> Iterator[str]:
    """The address of a donor that admits every joiner and then does what the script says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line = Line(listener.accept()[0], stall_s=PATIENCE_S, whole_s=PATIENCE_S)
                    with contextlib.suppress(LineError):
                        admit(line, token=token)
                        script(line)
                    line.close()
                    line.release()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def answer(*answers: Message | bytes) -> Callable[[Line], None]:
    """Answer each question with the next of these."""

    def script(line: Line) -> None:
        for each in answers:
            line.receive()
            if isinstance(each, bytes):
                line._socket.sendall(each)
            else:
                line.send(each)
        line.receive()

    return script


def good_manifest(state: dict[str, torch.Tensor], step: int = STEP) -> Manifest:
    layout = Layout(tensors=specs_of(state), chunk_bytes=CHUNK)
    return Manifest(step=step, layout=layout, digests=(b"d" * 8,) * layout.chunks)


@pytest.mark.parametrize(
    "script",
    [
        answer(b"HTTP/1.1 200 OK\r\n"),
        answer(pickle.dumps(plain(1))),
        answer(ManifestIs(body=b"{}")),
        answer(ManifestIs(body=pickle.dumps(plain(1)))),
        answer(ManifestIs(body=b"[" * 100_000)),
        answer(b"HWXF\x01\x05\xff\xff\xff\xff"),  # a manifest of 4 GB
        answer(AskManifest(step=STEP)),
        answer(ManifestIs(body=good_manifest(plain(1)).encode()), AskManifest(step=STEP)),
        answer(
            ManifestIs(body=good_manifest(plain(1)).encode()), b"HWXF\x01\x07\x00\x00\x00\x08" + b"\x7f" * 8
        ),
    ],
)
def test_nonsense_is_told_and_not_asked_for_thrice(script: Callable[[Line], None]) -> None:
    with scripted(script) as address:
        result = fail(address)
    assert result.cause is Cause.NO_DONOR
    assert [incident.fault for incident in result.incidents] == [Fault.MALFORMED] * 2


def test_a_planted_pickle_runs_nothing(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (tmp_path / "ran",)

    payload = pickle.dumps(Payload())
    for script in (answer(payload), answer(ManifestIs(body=payload))):
        with scripted(script) as address:
            assert fail(address).cause is Cause.NO_DONOR
    assert not (tmp_path / "ran").exists()


# Whatever a donor says where a manifest, or a chunk after a good manifest, is due.
FRAMES = st.builds(
    lambda kind, nbytes, payload: b"HWXF\x01" + bytes([kind]) + nbytes.to_bytes(4) + payload,
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1) | st.integers(0, 200),
    st.binary(max_size=200),
)
MANIFESTS = st.builds(
    lambda at, byte: ManifestIs(body=(body := good_manifest(plain(1)).encode())[:at] + byte + body[at + 1 :]),
    st.integers(0, 400),
    st.binary(min_size=1, max_size=1),
)


@settings(max_examples=25)
@given(first=st.binary(max_size=300) | FRAMES | MANIFESTS, second=st.binary(max_size=300) | FRAMES)
def test_any_answers_end_the_fetch_in_words_and_are_never_taken_for_the_state(
    first: bytes | ManifestIs, second: bytes
) -> None:
    with scripted(answer(first, second)) as address:
        result = fetch(
            [address], step=STEP, expected=plain(0), fresh=True, timeout_s=0.15, jitter=lambda: 0.0
        )
    assert isinstance(result, NotFetched)
    assert result.sentence
    assert all(incident.detail for incident in result.incidents)
