"""A launcher of ranks without torch, for tests of the local cluster: torchrun's arguments, our exit codes."""

import os
import subprocess
import sys
import time

ranks = int(sys.argv[sys.argv.index("--nproc-per-node") + 1])
program = sys.argv[sys.argv.index("--max-restarts") + 2 :]

workers = [
    subprocess.Popen(
        [sys.executable, "-S", *program],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "LAUNCHER": str(os.getpid())},
        start_new_session=True,
    )
    for rank in range(ranks)
]
while None in [worker.poll() for worker in workers] and not any(worker.poll() for worker in workers):
    time.sleep(0.01)
codes = [worker.poll() for worker in workers]
for worker in workers:
    worker.kill()
    worker.wait()
sys.exit(0 if not any(codes) else 4 if 4 in codes else 3)
