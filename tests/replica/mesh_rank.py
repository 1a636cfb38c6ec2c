"""One rank of a group, driven by lines on standard input, answering each with one line of JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

from replica.errors import RestartError
from replica.mesh import Ranks


def main() -> None:
    ranks = Ranks(device_type="cpu", timeout_s=60.0)
    ran: list[str] = []

    def first() -> list[str]:
        ranks.first_then_all(lambda: ran.append("action"), timeout_s=60.0)
        return ran

    def store() -> list[Any]:
        address = ranks.open_store("127.0.0.1")
        return [address.host, address.port]

    actions: dict[str, Callable[[], Any]] = {
        "about": lambda: [ranks.rank, ranks.world_size, ranks.mesh.size()],
        "share": lambda: ranks.share([ranks.rank, -(2**63) + ranks.rank, 2**63 - 1]),
        "mean": lambda: ranks.mean(0.1 + ranks.rank),
        "first": first,
        "store": store,
        "close": lambda: [ranks.close(), ranks.close()],
    }
    for line in sys.stdin:
        try:
            answer = actions[line.strip()]()
        except RestartError as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
