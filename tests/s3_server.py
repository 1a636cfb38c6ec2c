"""A real S3 server in a process of its own, and the environment by which it is found."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
START_S = 60.0


@contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """The environment of a server that has this bucket. Blocks until it answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    child = subprocess.Popen(
        [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, **CREDENTIALS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        _make_bucket(child, f"{address}/{bucket}")
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": address}
    finally:
        child.kill()
        child.wait()


def _make_bucket(child: "subprocess.Popen[bytes]", url: str) -> None:
    request = urllib.request.Request(url, method="PUT", headers={"Host": "s3.amazonaws.com"})
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(request).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.05)
