"""Listens where a Lighthouse would and says so in both Lighthouses' words, for tests of the local cluster."""

import socket
import sys

host, port = sys.argv[1].split(":")
with socket.create_server((host, int(port))) as server:
    address = f"http://{host}:{server.getsockname()[1]}"
    print(f"lighthouse listening on {address}, status on {address}")
    print(f"Lighthouse listening on: {address}", flush=True)
    while True:
        server.accept()[0].close()
