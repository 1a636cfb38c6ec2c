"""The command line: what status and forget print, and exit codes of bad input."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_lighthouse_attach import hello
from threaded import Threaded, threaded

from lighthouse.__main__ import main, table
from lighthouse.client import AttachStream, Phase
from lighthouse.status_words import COLUMNS


@pytest.fixture
def server() -> Iterator[Threaded]:
    with threaded() as running:
        yield running


def test_status_and_forget(server: Threaded, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"http://{server.address}"
    assert main(["status", address]) == 0
    assert capsys.readouterr().out == "no job has been seen yet\n"
    with AttachStream(server.address, hello(group=4, incarnation="s3cret")) as stream:
        stream.open(10)
        stream.progress(6, Phase.HEAL)
        server.wait(lambda slot: slot is not None and slot.step == 6, group=4)
        assert main(["status", address]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert (lines[0], lines[2]) == ("job", "  next quorum: nobody asks for one")
        assert lines[1] == "  there has been no quorum yet"
        assert lines[3].split() == " ".join(COLUMNS).split()
        assert lines[4].split()[:4] == ["4", "joining", "6", "heal"]
        assert main(["forget", address, "job"]) == 1
        assert "groups of job are alive" in capsys.readouterr().err
        assert stream.goodbye(finished=True, step=7)
    server.wait(lambda slot: slot is not None and not slot.lines, group=4)
    assert main(["status", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["finished_step"] == 7
    for answer in ("job is forgotten\n", "job was not known\n"):
        assert main(["forget", address, "job"]) == 0
        assert capsys.readouterr().out == answer


def test_drain_and_evict_say_what_was_done(server: Threaded, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("drain", "evict"):
        assert main([command, server.address, "job", "2"]) == 1
        assert capsys.readouterr().out == "group 2 of job does not live: nothing was done\n"
    with AttachStream(server.address, hello(group=2)) as stream:
        stream.open(10)
        assert main(["drain", server.address, "job", "2"]) == 0
        assert capsys.readouterr().out == "group 2 of job will leave at the end of its step\n"
        assert main(["status", server.address]) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith("  leaves at the end of its step")
        assert main(["evict", server.address, "job", "2"]) == 0
        assert capsys.readouterr().out == "group 2 of job is counted out\n"


def test_status_says_how_many_of_the_expected_groups_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with threaded(expected_groups=3) as server, AttachStream(server.address, hello()) as stream:
        stream.open(10)
        assert main(["status", server.address]) == 0
        assert (
            "  1 of 3 expected groups are seen here; missing: group 1, group 2"
            in capsys.readouterr().out.splitlines()
        )
        stream.goodbye(finished=False, step=0)


def test_columns_are_aligned() -> None:
    assert table([("group", "state", ""), ("0", "training", "slow")]) == [
        "group  state",
        "0      training  slow",
    ]


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("lighthouse: no Lighthouse answers at 127.0.0.1:1 ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["sail"], "invalid choice: 'sail'"),
        (["status"], "the following arguments are required: address"),
        (["status", "nonsense"], "malformed address 'nonsense'"),
        (["forget", "h:1", "a b"], "malformed job name 'a b'"),
        (["drain", "h:1", "job", "two"], "argument group: invalid int value: 'two'"),
        (["evict", "h:1", "job", "-1"], "malformed group number -1"),
        (["evict", "h:1", "a b", "1"], "malformed job name 'a b'"),
        (["watch-hardware", "h:1", "job", "1", "--kernel-log", "none"], "nothing to watch: give"),
        (["watch-hardware", "h:1", "a b", "1"], "malformed job 'a b'"),
        (["serve", "--heal-deadline-ms", "5"], "--progress-limit-floor-ms 30000: a heal takes longer"),
        (["serve", "--min-replicas", "x"], "argument --min-replicas/--min_replicas: invalid int value"),
        (["serve", "--groups", "2"], "unrecognized arguments: --groups 2"),
        (["serve", "--bind", "nonsense"], "malformed address 'nonsense'"),
        (["serve", "--expected-groups", "1", "--min-replicas", "2"], "the job could never start"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_4(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 4
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("lighthouse: ")
    assert sentence in output.err
    assert output.err.count("\n") == 1


def test_who_acts_shows_the_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text("the secret of this job")
    with threaded(token_file=token) as server:
        for words in (["drain", server.address, "job", "2"], ["evict", server.address, "job", "2"]):
            assert main(words) == 1
            assert capsys.readouterr().err.endswith("the job's token is missing, give --token-file\n")
            assert main([*words, "--token-file", str(token)]) == 1
            assert capsys.readouterr().out == "group 2 of job does not live: nothing was done\n"
        assert main(["forget", server.address, "job", "--token-file", str(token)]) == 0
        assert main(["status", server.address]) == 0
        assert main(["status", server.address, "--token-file", str(tmp_path / "gone")]) == 4
        assert "cannot be read" in capsys.readouterr().err
