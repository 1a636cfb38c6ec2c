"""What all tests share: hypothesis without a deadline, since a busy machine is no failure; one thread."""

import os

from hypothesis import settings

# Before torch is loaded: with several processes at once, more threads only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("headway", deadline=None)
settings.load_profile("headway")
