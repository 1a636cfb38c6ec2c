"""Two groups that trained together and have died: where transcripts of a cold start begin."""

from machine_transcript import Transcript
from test_lighthouse_machine import check

from lighthouse.quorum import Rules

TWO = Rules(expected_groups=2, join_timeout_s=60.0)

DISASTER = """
        0.0 attach 0a
        0.0 attach 1a
        0.0 ask 0a 40
        0.0 ask 1a 40
        1.0 cut 0a
        1.0 cut 1a
"""


def after_disaster(transcript: str, rules: Rules | None = None) -> Transcript:
    """Groups 0 and 1 were in quorum 1 at step 40 and are dead; then this."""
    start = Transcript(rules or TWO)
    start.play(DISASTER)
    return check("\n".join(start.lines) + transcript, rules or TWO)
