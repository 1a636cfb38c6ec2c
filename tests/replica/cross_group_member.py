"""One replica group's end of a process group across groups, driven by lines on standard input.

`configure PREFIX RANK WORLD_SIZE`, `sum VALUE` and `leave`; each is answered by one line: the
result, or the error's type, and the seconds that it took.
"""

import sys
import time

import torch

from replica.bridge.process_group import CrossGroupProcessGroup


def act(member: CrossGroupProcessGroup, word: str, arguments: list[str]) -> str:
    if word == "configure":
        prefix, rank, world_size = arguments
        member.configure(prefix, "member", int(rank), int(world_size), quorum_id=1)
        return ",".join(f"{peer.group}:{peer.step}" for peer in member.peers)
    if word == "sum":
        tensor = torch.full((100_000,), float(arguments[0]))
        member.sum_in_place(tensor)
        return f"{tensor.min()}..{tensor.max()}"
    member.shutdown()
    return "left"


def main() -> None:
    group = int(sys.argv[1])
    member = CrossGroupProcessGroup(
        group=group,
        step=lambda: 100 + group,
        advertise_addr="127.0.0.1",
        configure_timeout_s=30.0,
        collective_timeout_s=60.0,
    )
    print("up", flush=True)
    for line in sys.stdin:
        word, *arguments = line.split()
        started_s = time.monotonic()
        try:
            answer = act(member, word, arguments)
        except (RuntimeError, TimeoutError) as error:
            answer = type(error).__name__
        print(f"{answer} {time.monotonic() - started_s:.3f}", flush=True)


if __name__ == "__main__":
    main()
