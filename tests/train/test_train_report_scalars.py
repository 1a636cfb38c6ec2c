"""Scalars for TensorBoard: which there are, that TensorBoard reads them back, and life without it."""

import sys
from pathlib import Path

import pytest
from simulated_history import history
from test_train_evidence import write
from test_train_report import event, evidence, kill, line

from replica.errors import UserError
from replica.ledger import EventKind
from train.report import main
from train.report_scalars import require_tensorboard, scalars, write_scalars


def test_scalars_by_step() -> None:
    looked = event(3, EventKind.EVALUATION, group=0, incarnation="life0", step=2, loss=4.5)
    lines = [line(1, 0, 0, grad_norm=0.5, lr=1e-3), line(2.5, 0, 1, loss=None)]
    found = {(one.name, one.step): one for one in scalars(evidence(lines, kill(2, 1), looked))}
    values = {place: one.value for place, one in found.items()}
    assert values == {
        ("train/loss", 0): 5.0, ("train/grad_norm", 0): 0.5, ("train/learning_rate", 0): 1e-3,
        ("run/groups_in_quorum", 0): 2, ("run/kills_so_far", 0): 0, ("run/step_s", 1): 1.5,
        ("run/groups_in_quorum", 1): 2, ("run/kills_so_far", 1): 1, ("eval/loss", 2): 4.5,
    }  # fmt: skip
    assert found["train/loss", 0].t == 1


def test_tensorboard_reads_them_back_and_a_second_report_replaces_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = history(3)
    for _ in range(2):
        write_scalars(made, tmp_path / "run")
    (tmp_path / "run" / "events.out.tfevents.1.host.2.3").touch()  # somebody else's stays
    write_scalars(made, tmp_path / "run")
    assert len(list((tmp_path / "run").iterdir())) == 2
    accumulator = EventAccumulator(str(tmp_path / "run"))
    accumulator.Reload()
    loss = accumulator.Scalars("train/loss")
    assert [point.step for point in loss] == list(range(14))
    assert [point.value for point in loss] == pytest.approx([5.5 / (1 + step) for step in range(14)])
    assert loss[0].wall_time == pytest.approx(1_000_000, abs=100)


def test_one_sentence_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(history(2), tmp_path / "run")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'headway\[tensorboard\]'"):
        require_tensorboard()
    assert main([str(tmp_path / "run"), "--tensorboard", str(tmp_path / "logs")]) == 4
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert output.err.startswith("error: --tensorboard needs TensorBoard")
    assert not (tmp_path / "logs").exists()


def test_where_they_went_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    write(history(2), tmp_path / "run")
    assert main([str(tmp_path / "run"), "--tensorboard", str(tmp_path / "logs")]) == 0
    assert capsys.readouterr().out.endswith(f"\ntensorboard           {tmp_path / 'logs'}\n")
    assert list((tmp_path / "logs" / "run").iterdir())
