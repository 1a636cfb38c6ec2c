"""The paced trainer, except that group 0 sends joiners wrong bytes, and the others send slowly.

A state travels in chunks so small that every donor is asked for some.
"""

import functools
import os
import time

import paced_trainer

from replica.bridge import transport
from replica.transfer import DonorSettings, donor
from replica.transfer.wire import AskChunk, ChunkIs

transport.DonorSettings = functools.partial(DonorSettings, chunk_bytes=1 << 14)  # type: ignore[assignment,misc]
send_chunk = donor._Visit._send_chunk


def send_wrong_bytes(self: donor._Visit, question: AskChunk) -> None:
    data = self._staging.chunk(question.state_id, question.chunk)
    assert isinstance(data, memoryview)
    wrong = bytearray(data)
    wrong[len(wrong) // 2] ^= 1
    self._line.send(ChunkIs(chunk=question.chunk, nbytes=len(wrong)), memoryview(wrong))


def send_slowly(self: donor._Visit, question: AskChunk) -> None:
    time.sleep(0.01)
    send_chunk(self, question)


lies = os.environ["REPLICA_GROUP_ID"] == "0"
donor._Visit._send_chunk = send_wrong_bytes if lies else send_slowly  # type: ignore[method-assign]
paced_trainer.main()
