"""Writers of saves that are killed again and again, at any moment: a complete save is always there."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "replica" / "backstop"))

from backstop_kills import kill_writers

pytestmark = [pytest.mark.storm, pytest.mark.timeout(900)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_writers_killed_at_random_moments(tmp_path: Path, ranks: int) -> None:
    assert kill_writers(tmp_path, ranks=ranks, kills=60) > 0
