"""The only package that knows torchft: its Manager, process group and checkpoint transport."""

import os

# torchft's native half reads this when it is loaded. At its default it logs each quorum with the
# members' full replica ids, which are their secrets on the wire.
os.environ.setdefault("RUST_LOG", "error")
