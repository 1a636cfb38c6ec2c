"""Certificates: files that cannot be used are told in a sentence, and so is what two ends do not like."""

import re
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from lighthouse.tls import Tls, TlsError, read_tls, sentence_of, speaks_tls, why_not


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


def test_the_files_may_go_once_they_were_read(certificates: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(certificates, tmp_path / "copy")
    tls = files(folder, "own")
    shutil.rmtree(folder)
    handshake(tls, tls)


def handshake(server: Tls, client: Tls, *, name: str | None = None) -> None:
    """Between two ends in memory; with `name`, the server's certificate must be made out to it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client.calling if name is None else client.calling_by_name
    calling = context.wrap_bio(to_client, to_server, server_hostname=name)
    serving = server.serving.wrap_bio(to_server, to_client, server_side=True)
    waiting = [calling, serving]
    while waiting:
        end = waiting.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(end)
    assert calling.version() == "TLSv1.3"


def test_a_certificate_for_another_name_is_told_as_such(certificates: Path) -> None:
    own = files(certificates, "own")
    handshake(own, own, name="127.0.0.1")
    for name in ("127.0.0.2", "elsewhere.example"):
        with pytest.raises(ssl.SSLCertVerificationError) as refusal:
            handshake(own, own, name=name)
        said = sentence_of(refusal.value)
        assert name in said
        assert "call it by a name that is in it" in said
        assert "--tls-ca" not in said
    with pytest.raises(ssl.SSLCertVerificationError) as refusal:
        handshake(files(certificates, "foreign", "other"), own)
    assert "is --tls-ca the CA of both?" in sentence_of(refusal.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_certificates_that_the_readme_makes_can_be_used(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    script = re.search(r"\n\n((?:    .*openssl.*\n|    EC=.*\n)+)\n", text)
    assert script is not None
    subprocess.run(["sh", "-e", "-c", script[1]], cwd=tmp_path, check=True, capture_output=True)
    host = files(tmp_path, "host")
    handshake(host, host, name="lighthouse.example")


def test_whether_tls_is_spoken_at_an_address_can_be_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert not speaks_tls(f"127.0.0.1:{port}")


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
