"""Starts the worker that its arguments name, as torchrun's agent inside our launcher would, and waits."""

import os
import subprocess
import sys

from replica.exit import LAUNCHER_PID_VARIABLE

told = {LAUNCHER_PID_VARIABLE: str(os.getpid()), "TORCHELASTIC_RUN_ID": "1"}
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]], env={**os.environ, **told}))
