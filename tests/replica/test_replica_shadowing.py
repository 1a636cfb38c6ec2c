"""Files of the user that would take the place of our packages: found, and those that do no harm let be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replica.errors import UserError
from replica.shadowing import LIBRARY, TRAINER, find_shadow, refuse_shadows, search_path

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", TRAINER)
@pytest.mark.parametrize("kind", ["module", "package"])
def test_a_module_or_package_of_the_name_is_a_shadow(package: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / (f"{package}.py" if kind == "module" else package)
    if kind == "module":
        path.touch()
    else:
        path.mkdir()
        (path / "__init__.py").touch()
    shadow = find_shadow(TRAINER, [str(tmp_path)])
    assert shadow is not None
    assert (shadow.package, shadow.path) == (package, path)


def test_our_own_files_and_files_of_other_names_are_none(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").touch()
    (tmp_path / "checkout").symlink_to(ROOT)
    assert find_shadow(TRAINER, []) is None
    assert find_shadow(TRAINER, [str(tmp_path), str(ROOT)]) is None
    assert find_shadow(TRAINER, [str(tmp_path / "checkout")]) is None


def test_the_first_place_counts(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert find_shadow(TRAINER, [str(tmp_path), str(ROOT)]) is not None
    assert find_shadow(TRAINER, [str(ROOT), str(tmp_path)]) is None


def test_only_the_packages_that_are_needed_count(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert find_shadow(LIBRARY, [str(tmp_path)]) is None


def test_a_folder_with_data_is_none_unless_it_gets_in_the_way(tmp_path: Path) -> None:
    for name in ("train", "protos", "lighthouse"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").touch()
    assert find_shadow(TRAINER, [str(tmp_path)]) is None
    (tmp_path / "train" / "loop.py").touch()
    shadow = find_shadow(TRAINER, [str(tmp_path)])
    assert shadow is not None
    assert shadow.package == "train"
    (tmp_path / "replica").mkdir()
    shadow = find_shadow(TRAINER, [str(tmp_path)])
    assert shadow is not None
    assert shadow.package == "replica"


def test_where_a_program_looks(tmp_path: Path) -> None:
    first = str(tmp_path)
    assert search_path(tmp_path, {})[0] == first
    assert search_path(tmp_path, {"PYTHONPATH": f"/a{os.pathsep}/b"})[:3] == [first, "/a", "/b"]
    assert first not in search_path(tmp_path, {"PYTHONSAFEPATH": "1"})
    assert search_path(tmp_path, {"PYTHONPATH": ""}) == search_path(tmp_path, {})


def test_the_sentence_says_what_where_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(UserError) as caught:
        refuse_shadows(TRAINER, tmp_path, {})
    assert str(caught.value).startswith(f"{tmp_path / 'train.py'} hides Headway's package `train` ")
    assert "rename it" in str(caught.value)
    with pytest.raises(UserError, match=r"train.py hides"):
        refuse_shadows(TRAINER, tmp_path / "elsewhere", {"PYTHONPATH": str(tmp_path)})
    refuse_shadows(TRAINER, tmp_path, {"PYTHONSAFEPATH": "1"})


def launched(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The launcher is ours by its place on PYTHONPATH; what its ranks would import is checked.
    return subprocess.run(
        [sys.executable, "-m", "replica.launch", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_real_launcher_refuses_a_train_py_where_it_does_harm(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('my own script')")
    result = launched(tmp_path, "-m", "train", "job.toml")
    assert result.returncode == 4
    assert result.stderr.startswith(f"error: {tmp_path / 'train.py'} hides Headway's package `train` ")
    assert result.stderr.count("\n") == 1
    # As a script it is what the user wants to run, and in nobody's way.
    result = launched(tmp_path, "train.py")
    assert (result.returncode, result.stdout) == (0, "my own script\n")


def test_a_real_launcher_looks_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "mine.py").touch()
    (tmp_path / "scripts" / "replica.py").touch()
    result = launched(tmp_path, "scripts/mine.py")
    assert result.returncode == 4
    assert result.stderr.startswith(f"error: {tmp_path / 'scripts' / 'replica.py'} hides ")
