"""The command for people: what it says of saves, good and damaged, what it removes, and how it ends."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from replica.backstop import SaveName, Store
from train import checkpoint
from train.checkpoint import main

NAMES = [SaveName(step=step, quorum_id=step // 4, incarnation="0123abcd").text for step in (12, 8, 4)]
OTHER = SaveName(step=2, quorum_id=0, incarnation="0123abcd").text


@pytest.fixture
def saves(made_saves: Path, tmp_path: Path) -> Path:
    """A copy of the saves, to be changed."""
    return Path(shutil.copytree(made_saves, tmp_path / "saves"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def said(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err


# list


def test_all_saves_of_all_jobs_are_listed_the_newest_first(
    saves: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", str(saves)]) == 0
    lines, _ = said(capsys)
    assert lines[0].split() == ["JOB", "STEP", "SAVED", "AGE", "SIZE", "RANKS", "SAVE"]
    assert [line.split()[-1] for line in lines[1:]] == [OTHER, *NAMES]
    assert [" ".join(line.split()[:2]) for line in lines[1:]] == ["other 2", "tiny 12", "tiny 8", "tiny 4"]
    assert all(" min " in line or " s " in line for line in lines[1:])
    assert len({line.index("step-") for line in lines[1:]}) == 1


def test_a_file_beside_the_jobs_is_none(saves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saves / "README").write_text("ours")
    (saves / "also").mkdir()
    assert main(["list", str(saves)]) == 0
    assert len(said(capsys)[0]) == 5


def test_one_job_as_json(saves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saves / "tiny" / NAMES[1] / "headway.json").unlink()
    assert main(["list", str(saves), "--job", "tiny", "--json"]) == 0
    newest, torn, oldest = json.loads(capsys.readouterr().out)
    assert (newest["save"], newest["step"], newest["quorum_id"]) == (NAMES[0], 12, 3)
    assert newest["complete"]
    assert (newest["group"], newest["group_world_size"], newest["digest"]) == (1, 2, "d" * 32)
    size = sum(path.stat().st_size for path in (saves / "tiny" / NAMES[0]).iterdir())
    manifest = (saves / "tiny" / NAMES[0] / "headway.json").stat().st_size
    assert newest["bytes"] == size - manifest
    assert torn == {
        "job": "tiny", "save": NAMES[1], "complete": False,
        "why": "it has no headway.json: its writing was not finished",
    }  # fmt: skip
    assert oldest["save"] == NAMES[2]


def test_torn_saves_are_listed_with_the_reason(saves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saves / "tiny" / NAMES[0] / "__1_0.distcp").unlink()
    assert main(["list", str(saves), "--job", "tiny"]) == 0
    lines, _ = said(capsys)
    assert lines[1].split(maxsplit=6)[:3] == ["tiny", "-", "torn"]
    assert lines[1].endswith(f"{NAMES[0]}: __1_0.distcp is missing")


def test_where_there_are_no_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"there are no saves at {tmp_path}\n"
    assert main(["list", str(tmp_path / "nowhere"), "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
    (tmp_path / "logs").mkdir()
    assert main(["verify", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: there are no saves at {tmp_path}\n"


# verify


def test_the_newest_save_of_each_job_is_verified(saves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(saves / "tiny" / NAMES[2] / "__0_0.distcp")
    assert main(["verify", str(saves)]) == 0
    lines, _ = said(capsys)
    assert [line.partition(":")[0] for line in lines] == [f"other/{OTHER}", f"tiny/{NAMES[0]}"]
    assert all("is as it was written" in line for line in lines)


def test_every_problem_is_told_on_a_line(saves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(saves / "tiny" / NAMES[0] / "__0_0.distcp")
    flip(saves / "tiny" / NAMES[0] / ".metadata")
    (saves / "tiny" / NAMES[1] / "headway.json").write_text("{}")
    (saves / "tiny" / f".partial-{NAMES[0]}").mkdir()
    assert main(["verify", str(saves), "--job", "tiny", "--all"]) == 1
    lines, _ = said(capsys)
    wrong = [line for line in lines if "is as it was written" not in line]
    assert len(wrong) == 3
    assert all(line.startswith("tiny/") for line in wrong)
    assert f"tiny/{NAMES[0]}/__0_0.distcp does not have the bytes that were written" in "".join(wrong)
    assert f"tiny/{NAMES[1]} is torn: the manifest is of format None" in "".join(wrong)
    assert len(lines) == 4


def test_a_save_is_verified_by_name(saves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["verify", str(saves), "--job", "tiny", "--save"]
    flip(saves / "tiny" / NAMES[1] / "__0_0.distcp")
    assert main([*words, NAMES[0]]) == 0
    assert main([*words, NAMES[1]]) == 1
    capsys.readouterr()
    (saves / "tiny" / NAMES[2] / "headway.json").unlink()
    assert main([*words, NAMES[2]]) == 1
    assert f"tiny/{NAMES[2]} is torn: it has no headway.json" in capsys.readouterr().err
    assert main([*words, "step-9"]) == 4
    assert f"job tiny has no save 'step-9' at {saves}; the newest are: {NAMES[0]}" in capsys.readouterr().err


def test_metadata_that_does_not_fit_its_files_is_found(
    saves: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checksums cannot tell what was wrong from the beginning."""
    from replica.backstop import Store, StoreError

    def refuse(store: Store, save: object) -> None:
        raise StoreError("the metadata refers to what is not there")

    monkeypatch.setattr("replica.backstop.reading.contents_of", refuse)
    assert main(["verify", str(saves), "--job", "tiny"]) == 1
    assert capsys.readouterr().out == f"tiny/{NAMES[0]}: the metadata refers to what is not there\n"


# prune


def folders(saves: Path) -> list[str]:
    return sorted(path.name for path in (saves / "tiny").iterdir())


def test_the_newest_complete_saves_stay(saves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["prune", str(saves), "--job", "tiny", "--keep"]
    assert main([*words, "2", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would remove tiny/{NAMES[2]}\n"
    assert len(folders(saves)) == 3
    assert main([*words, "2"]) == 0
    assert capsys.readouterr().out == f"removed tiny/{NAMES[2]}\n"
    assert folders(saves) == sorted(NAMES[:2])
    assert main([*words, "2"]) == 0
    assert capsys.readouterr().out == f"nothing of job tiny is superfluous at {saves}\n"
    assert (saves / "other" / OTHER).is_dir()


def test_a_torn_save_is_not_kept_in_place_of_a_complete_one(saves: Path) -> None:
    (saves / "tiny" / NAMES[1] / "__0_0.distcp").unlink()
    assert main(["prune", str(saves), "--job", "tiny", "--keep", "2"]) == 0
    assert folders(saves) == sorted([NAMES[0], NAMES[2]])


def test_what_may_be_in_flight_stays_and_trash_goes(saves: Path) -> None:
    flying, landed = f".partial-{NAMES[0]}", f".partial-{NAMES[2]}"
    (saves / "tiny" / NAMES[0] / "headway.json").unlink()  # now torn, of a quorum above the newest complete
    same_quorum = ".partial-" + SaveName(step=9, quorum_id=2, incarnation="0123abcd").text
    for name in (flying, same_quorum, landed, ".trash-x", "mine"):
        (saves / "tiny" / name).mkdir()
    assert main(["prune", str(saves), "--job", "tiny", "--keep", "9"]) == 0
    assert folders(saves) == sorted([*NAMES, flying, same_quorum, "mine"])


def test_one_that_cannot_be_read_stays(saves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(store: Store, path: str, limit_bytes: int) -> bytes:
        if path.startswith(NAMES[2]):
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(store, path, limit_bytes)

    read = Store.read_file
    monkeypatch.setattr(Store, "read_file", refuse)
    assert main(["prune", str(saves), "--job", "tiny", "--keep", "1"]) == 0
    assert folders(saves) == sorted([NAMES[0], NAMES[2]])


def test_without_a_complete_save_nothing_is_removed(saves: Path) -> None:
    for name in NAMES:
        (saves / "tiny" / name / "headway.json").unlink()
    assert main(["prune", str(saves), "--job", "tiny", "--keep", "1"]) == 0
    assert folders(saves) == sorted(NAMES)


# export


def test_the_newest_save_is_exported(saves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(saves), str(tmp_path / "out"), "--job", "tiny"]) == 0
    lines, _ = said(capsys)
    assert lines[0].startswith("wrote step 12 of job tiny: 0.1 MB in 21 tensors")
    assert lines[1:] == [f"  {tmp_path}/out/config.json", f"  {tmp_path}/out/model.safetensors"]


def test_another_model_is_exported_with_a_sentence(
    saves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(saves), str(tmp_path / "out"), "--job", "other", "--save", OTHER]
    assert main(words) == 0
    assert "This save is not of the reference model" in said(capsys)[0][-1]


def test_a_damaged_save_is_not_exported(
    saves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(saves / "tiny" / NAMES[0] / "__1_0.distcp")
    assert main(["export", str(saves), str(tmp_path / "out"), "--job", "tiny"]) == 1
    told = f"error: the save is damaged, and nothing was written: tiny/{NAMES[0]}/__1_0.distcp does not have"
    assert capsys.readouterr().err.startswith(told)
    assert not (tmp_path / "out").exists()


# Remote stores


def test_saves_at_a_remote_store(
    made_saves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "memory://bucket/checkpoints"
    memory = fsspec.filesystem("memory")
    memory.put(str(made_saves), "/bucket/checkpoints", recursive=True)
    try:
        assert main(["list", url]) == 0
        assert [line.split()[-1] for line in said(capsys)[0][1:]] == [OTHER, *NAMES]
        assert main(["verify", url, "--all"]) == 0
        assert main(["export", url, str(tmp_path / "out"), "--job", "tiny"]) == 0
        assert (tmp_path / "out" / "model.safetensors").is_file()
        assert main(["prune", url, "--job", "tiny", "--keep", "1"]) == 0
        capsys.readouterr()
        assert main(["list", url, "--job", "tiny"]) == 0
        assert [line.split()[-1] for line in said(capsys)[0][1:]] == NAMES[:1]
    finally:
        memory.rm("/bucket", recursive=True)


# Input


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "COMMAND"),
        (["mend", "URL"], "invalid choice: 'mend'"),
        (["list"], "URL"),
        (["list", "URL", "--frobnicate"], "--frobnicate"),
        (["list", "moon://x"], "moon"),
        (["list", "URL", "--job", "a/b"], "job name 'a/b'"),
        (["list", "URL/tiny"], "is the folder of one job: give the one above it, and --job tiny"),
        (["verify", "URL", "--all", "--save", "x"], "not allowed with"),
        (["prune", "URL", "--keep", "2"], "--job"),
        (["prune", "URL", "--job", "tiny", "--keep", "0"], "at least 1"),
        (["prune", "URL", "--job", "tiny", "--keep", "two"], "invalid int"),
        (["export", "URL", "out"], "several jobs at URL: choose one of other, tiny with --job"),
        (["export", "nowhere", "out"], "there are no saves at nowhere"),
        (["export", "URL", "out", "--job", "tiny", "--shard-mb", "0"], "--shard-mb 0"),
        (["export", "URL", "URL", "--job", "tiny"], "is not an empty folder"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: list[str],
    says: str,
    made_saves: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("URL").symlink_to(made_saves)
    assert main(words) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_a_store_that_does_not_answer_is_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def names(self, path: str) -> list[str]:
            raise RuntimeError("no route to host\nat frame 7")

        def where(self, path: str) -> str:
            return "s3://b/"

    monkeypatch.setattr(checkpoint, "files_at", lambda url: Silent())
    assert main(["list", "s3://b"]) == 1
    said = capsys.readouterr().err
    assert said == "error: listing jobs at s3://b/ failed: RuntimeError: no route to host\n"


def test_an_interrupt_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(url: str) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "jobs_at", interrupt)
    assert main(["list", "URL"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_help_and_lists_do_not_wait_for_torch(made_saves: Path) -> None:
    program = (
        "import sys; from train.checkpoint import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, "list", str(made_saves)], capture_output=True)
    assert done.returncode == 0, done.stderr
    helped = subprocess.run(
        [sys.executable, "-m", "train.checkpoint", "prune", "--help"], capture_output=True, text=True
    )
    assert helped.returncode == 0
    assert "--dry-run" in helped.stdout


def test_ages_and_sizes_read_well() -> None:
    assert [checkpoint._age_text(age) for age in (-3.0, 59.0, 90.0, 5400.0, 200_000.0)] == [
        "0 s", "59 s", "1.5 min", "1.5 h", "2.3 d",
    ]  # fmt: skip
    assert [checkpoint._size_text(size) for size in (1200, 5 * 10**6, 3 * 10**9)] == [
        "0.0 MB", "5.0 MB", "3.0 GB",
    ]  # fmt: skip


def test_a_place_that_is_away_or_cannot_be_is_told_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "ftp://127.0.0.1:1/saves"]) == 1
    assert "cannot be reached: Connection refused" in capsys.readouterr().err
    assert main(["list", "~nobody-here/saves"]) == 4
    assert "cannot be used" in capsys.readouterr().err
