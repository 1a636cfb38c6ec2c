"""Certificates: files that cannot be used are told in a sentence, and so is what two ends do not like."""

import socket
import threading
from pathlib import Path

import pytest

from lighthouse.tls import Tls, TlsError, read_tls, why_not


def files(folder: Path, name: str, ca: str | None = "ca") -> Tls:
    return read_tls(
        cert=folder / f"{name}.pem",
        key=folder / f"{name}.key",
        ca=None if ca is None else folder / f"{ca}.pem",
    )


def test_files_that_fit_are_read_and_the_key_is_not_shown(certificates: Path) -> None:
    tls = files(certificates, "own")
    assert tls.cert == (certificates / "own.pem").read_bytes()
    assert "PRIVATE KEY" in (tls.key or b"").decode()
    assert "PRIVATE KEY" not in repr(tls)


@pytest.mark.parametrize(
    ("cert", "key", "ca", "says"),
    [
        ("own.pem", None, "ca.pem", "--tls-cert is given without --tls-key"),
        (None, "own.key", "ca.pem", "--tls-key is given without --tls-cert"),
        ("own.pem", "foreign.key", "ca.pem", "key values mismatch"),
        ("own.key", "own.key", "ca.pem", "in PEM form"),
        ("own.pem", "own.pem", "ca.pem", "in PEM form"),
        ("gone.pem", "own.key", "ca.pem", "cannot be read (No such file or directory)"),
        (".", "own.key", "ca.pem", "cannot be read (Is a directory)"),
        ("own.pem", "own.key", "own.key", "holds no certificate"),
        ("own.pem", "own.key", "empty", "holds no certificate"),
        ("own.pem", "own.key", "noise", "holds no certificate"),
    ],
)
def test_files_that_do_not_fit_are_told_in_one_sentence(
    certificates: Path, cert: str | None, key: str | None, ca: str | None, says: str
) -> None:
    (certificates / "empty").touch()
    (certificates / "noise").write_bytes(b"\xff\x00\xfe")
    paths = {name: each and certificates / each for name, each in (("cert", cert), ("key", key), ("ca", ca))}
    with pytest.raises(TlsError) as refusal:
        read_tls(**paths)  # type: ignore[arg-type]
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "PRIVATE" not in str(refusal.value)


def test_a_key_behind_a_password_is_refused_and_not_asked_for(certificates: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    plain = serialization.load_pem_private_key((certificates / "own.key").read_bytes(), None)
    locked = plain.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    (tmp_path / "locked").write_bytes(locked)
    with pytest.raises(TlsError, match="without a password"):
        read_tls(cert=certificates / "own.pem", key=tmp_path / "locked", ca=None)


def test_nobody_there_is_no_trouble_of_tls(certificates: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert why_not(f"127.0.0.1:{port}", files(certificates, "own")) is None


def test_a_server_that_does_not_speak_tls_is_told(certificates: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.recv(1)
                connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connected.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        assert why_not(f"127.0.0.1:{port}", files(certificates, "own")) == "it does not speak TLS"
        thread.join()
