"""What several tests of the trainer's tools need: real saves, made by two ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def made_saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of saves of the jobs tiny and other, not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(HERE / "saving_rank.py"), str(folder)]
    ranks = [subprocess.Popen([*words, str(rank)], env=environment) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return folder / "saves"
