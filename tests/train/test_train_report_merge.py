"""Parts of one run, put together: the same evidence, whatever part holds what."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_history import history
from test_train_evidence import write
from test_train_gaps import of_hosts

from replica.errors import UserError
from replica.ledger import ledger_path
from train.evidence.files import Evidence, read_evidence
from train.report import main
from train.report_merge import merge


def test_the_folders_of_all_hosts_are_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = of_hosts(history(4), 0, 1, 2)
    hosts = [tmp_path / name for name in ("a", "b", "c")]
    for group, host in enumerate(hosts):
        write(of_hosts(whole, group), host)
    assert main(["--merge", str(tmp_path / "run"), *map(str, hosts)]) == 0
    text = capsys.readouterr().out
    assert f"files                 {tmp_path / 'run'}\nno broken promise\n" in text
    read = read_evidence(tmp_path / "run")
    assert read.ledgers == whole.ledgers
    assert sorted(map(str, read.events)) == sorted(map(str, whole.events))
    assert (tmp_path / "run" / "report.html").exists()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), data=st.data())
def test_lines_may_be_anywhere_and_twice(
    seed: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A group may have moved to another host in mid run, and a copy may be taken twice."""
    whole, folder = of_hosts(history(seed), 0, 1, 2), tmp_path_factory.mktemp("run")
    moves = {
        one: data.draw(st.sampled_from("ab")) for one in sorted({line.incarnation for line in whole.lines})
    }
    for host in "ab":
        ledgers = {
            group: tuple(line for line in lines if moves[line.incarnation] == host)
            for group, lines in whole.ledgers.items()
        }
        events = tuple(each for each in whole.events if moves.get(str(each.incarnation), "a") == host)
        write(replace(whole, ledgers=ledgers, events=events), folder / host)
    merge([folder / "a", folder / "b", folder / "a"], folder / "run")
    read = read_evidence(folder / "run")
    assert {group: lines for group, lines in read.ledgers.items() if lines} == whole.ledgers
    assert [each.t for each in read.events] == sorted(each.t for each in whole.events)


def test_a_group_that_moved_keeps_its_order_whatever_the_clocks_say(tmp_path: Path) -> None:
    (lines, *_) = history(1, kills=0).ledgers.values()
    early = [replace(one, t=one.t - 1000.0, quorum_id=9, incarnation="moved") for one in lines[7:]]
    for host, part in (("a", lines[:7]), ("b", tuple(early))):
        write(Evidence(out=tmp_path, ledgers={0: tuple(part)}, events=()), tmp_path / host)
    merge([tmp_path / "b", tmp_path / "a"], tmp_path / "run")
    assert [one.step for one in read_evidence(tmp_path / "run").ledgers[0]] == list(range(14))


def test_torn_last_lines_are_left_out_and_damage_stays(tmp_path: Path) -> None:
    write(of_hosts(history(1), 0), tmp_path / "a")
    path = ledger_path(tmp_path / "a", 0)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "damage", *lines[1:], lines[0][:30]]))
    merge([tmp_path / "a"], tmp_path / "run")
    assert ledger_path(tmp_path / "run", 0).read_text().splitlines() == [lines[0], "damage", *lines[1:]]
    # A last line that lacks only its end is whole.
    path.write_text("\n".join(lines))
    merge([tmp_path / "a"], tmp_path / "again")
    assert ledger_path(tmp_path / "again", 0).read_text().splitlines() == lines
    assert all(json.loads(line) for line in lines)


def test_what_cannot_be_put_together_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(of_hosts(history(1), 0), tmp_path / "a")
    with pytest.raises(UserError, match="holds neither ledger nor events; name the --out folder of a host"):
        merge([tmp_path / "a", tmp_path / "nowhere"], tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert main(["--merge", str(tmp_path / "a"), str(tmp_path / "a")]) == 4
    assert capsys.readouterr().err == (
        f"error: the folder {tmp_path / 'a'} holds a run already; name a new one with --merge\n"
    )


def test_half_a_run_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / "host"
    (part / "ledger").mkdir(parents=True)
    (part / "ledger" / "group-0.jsonl").write_text('{"t": 1.0}\n')
    (part / "events.jsonl").write_text('{"t": 1.0}\n')
    write_bytes = Path.write_bytes

    def fail_in_ledgers(path: Path, data: bytes) -> int:
        if path.parent.name == "ledger":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", fail_in_ledgers)
    with pytest.raises(OSError, match="No space left"):
        merge([part], tmp_path / "new")
    monkeypatch.undo()
    merge([part], tmp_path / "new")
