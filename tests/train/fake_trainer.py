"""A trainer that only pretends, for tests of the local cluster: it writes a ledger and takes its time.

Takes the step from the ledgers of the other groups, as if healed, when it starts or falls behind.
Arguments: the seconds of a step; then `refuse`, `crash`, `idle` or `linger` for a trainer that behaves badly,
or `kills-N` for one that is content after a step, however few it has done, once there were N kills.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

out = Path(os.environ["HEADWAY_OUT"])
group, rank = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["RANK"])
steps = int(os.environ["HEADWAY_STEPS"])
step_s, manner = float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "well"
launcher = int(os.environ["LAUNCHER"])


def append(path: Path, **entry: object) -> None:
    with path.open("a") as file:
        file.write(
            json.dumps({"t": time.time(), "group": group, "incarnation": str(os.getpid()), **entry}) + "\n"
        )


def newest_step() -> int:
    """One more than the newest step in any ledger."""
    steps_seen = [0]
    for path in (out / "ledger").glob("*.jsonl"):
        whole, _, _ = path.read_text().rpartition("\n")  # its writer may be in the middle of a line
        steps_seen += [json.loads(line)["step"] + 1 for line in whole.splitlines()[-1:]]
    return max(steps_seen)


if manner == "refuse":
    print("error: the moon is in the wrong place: wait for another.", flush=True)
    sys.exit(4)
if manner == "idle":
    sys.exit(0)
if manner == "crash":
    print("a crash without a word", flush=True)
    sys.exit(1)
if manner == "linger":  # a helper that outlives its worker, in a session of its own
    subprocess.Popen(["sleep", "600"], start_new_session=True)
if rank == 0:
    append(out / "events.jsonl", kind="group_started")
# A whole line of a ledger, with nothing in it that is of interest here.
LINE = {
    "outcome": "committed",
    "reason": "none",
    "quorum_id": 1,
    "participants": [group],
    "rounds": [],
    "seconds": dict.fromkeys(("quorum", "heal", "compute", "reduce", "vote", "commit", "total"), 0.0),
}


def content() -> bool:
    """Whether there have been as many kills as the trainer was told to wait for."""
    wanted = manner.removeprefix("kills-")
    return wanted.isdigit() and (out / "events.jsonl").read_text().count('"kind":"kill"') >= int(wanted)


step = newest_step()
while step < steps and os.getppid() == launcher:
    time.sleep(step_s)
    if rank == 0:
        append(out / "ledger" / f"group-{group}.jsonl", **LINE, step=step, loss=5 - step / 100)
    step = max(step + 1, newest_step() - 1)
    if content():
        break
