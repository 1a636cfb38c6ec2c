"""A process that ties its life to its parent's, says so, and waits; with `late`, after a word on its pipe."""

import os
import sys
import time

from replica.watchdog import die_with_parent

if "late" in sys.argv:
    print(os.getpid(), flush=True)
    with open(sys.argv[-1]) as gate:  # opens when the test opens the other end
        gate.read()
die_with_parent()
print(f"tied {os.getpid()}", flush=True)
time.sleep(600)
