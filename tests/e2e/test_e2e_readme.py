"""The scripts in the README are complete and do what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.tolerant]
README = Path(__file__).parents[2] / "README.md"


def scripts() -> dict[str, str]:
    """The README's Python blocks by the file name that their first line gives."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    return {block.split('"""')[1].split(":")[0]: block for block in blocks}


def lines_of_code(script: str) -> int:
    return len([line for line in script.splitlines() if line.strip()])


def test_the_scripts_are_short() -> None:
    found = scripts()
    assert set(found) == {"my_script.py", "test_my_script.py"}
    assert lines_of_code(found["my_script.py"]) <= 40
    assert lines_of_code(found["test_my_script.py"]) <= 15


def test_the_users_test_of_the_users_script_passes(tmp_path: Path) -> None:
    for name, text in scripts().items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_my_script.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout
