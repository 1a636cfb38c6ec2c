"""Live state from peer to peer: a donor stages a copy, joiners read it from all donors at once, checked.

`Donor` serves, `fetch` reads. Nothing here knows torchft, and nothing is ever unpickled.
"""

from replica.transfer.donor import Donor, DonorSettings, Served
from replica.transfer.joiner import FetchSettings, fetch
from replica.transfer.report import Cause, DonorShare, Fault, Fetched, Incident, NotFetched

__all__ = [
    "Cause",
    "Donor",
    "DonorSettings",
    "DonorShare",
    "Fault",
    "FetchSettings",
    "Fetched",
    "Incident",
    "NotFetched",
    "Served",
    "fetch",
]
