"""The `headway` command: dispatch, help, and a sentence for what it does not know."""

import sys
from types import ModuleType

import pytest

from train.console import SUBCOMMANDS, main


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_a_subcommand_hands_its_arguments_on_and_its_exit_code_back(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def fake_main(argv: list[str]) -> int:
        seen.append(argv)
        return 3

    module = ModuleType("fake")
    module.main = fake_main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, SUBCOMMANDS[name].module, module)
    assert main([name, "--steps", "5"]) == 3
    assert seen == [["--steps", "5"]]


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_help_tells_each_subcommand_in_a_line(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in SUBCOMMANDS.items():
        assert [line for line in lines if line.split()[:1] == [name] and command.summary in line]


def test_no_subcommand_prints_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 4
    assert capsys.readouterr().err.startswith("usage: headway SUBCOMMAND")


def test_an_unknown_subcommand_gets_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lokal"]) == 4
    sentence = capsys.readouterr().err
    assert sentence == "error: unknown subcommand 'lokal' (did you mean local?); see headway --help\n"


def test_the_command_line_of_the_process_is_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", "--help"])
    assert main() == 0
    assert "local" in capsys.readouterr().out
