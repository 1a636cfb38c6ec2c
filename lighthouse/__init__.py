"""The Lighthouse: it knows which replica groups live, and decides who trains together. Needs no torch."""

import os

# gRPC, which reads this as it is imported, would write a line for each stranger whose handshake fails.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
