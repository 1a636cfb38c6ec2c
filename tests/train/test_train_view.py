"""What the views show, and how often."""

import io

import pytest
from rich.console import Console

from train.cluster.snapshot import GroupSnapshot, GroupState, Snapshot
from train.cluster.view import LINE_EVERY_S, LineView, LiveView, line, open_view, table

GROUPS = (
    GroupSnapshot(group=0, state=GroupState.TRAINING, step=84, last_seen_s=0.2),
    GroupSnapshot(group=1, state=GroupState.HEALING, step=70, last_seen_s=3.0),
    GroupSnapshot(group=2, state=GroupState.DEAD, step=80, last_seen_s=1.24),
)
SEEN = Snapshot(step=84, steps=200, loss=2.9129, step_s=0.618, kills=2, lighthouse_up=True, groups=GROUPS)
BEFORE = Snapshot(
    step=0,
    steps=None,
    loss=None,
    step_s=None,
    kills=0,
    lighthouse_up=False,
    groups=(GroupSnapshot(group=0, state=GroupState.STARTING, step=0),),
)


def drawn(snapshot: Snapshot) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(table(snapshot))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_line() -> None:
    assert line(SEEN) == (
        "step 84/200  loss 2.913  0.62 s/step  kills 2  groups 0 training 84 | 1 healing | 2 dead 1.2 s"
    )


def test_line_before_the_first_step() -> None:
    assert line(BEFORE) == "step 0  Lighthouse down  groups 0 starting"


def test_table() -> None:
    text = [row.split() for row in drawn(SEEN).splitlines()]
    assert text[0] == ["step", "84/200", "loss", "2.913", "1.62", "steps/s", "kills", "2"]
    assert text[2] == ["group", "state", "step", "last", "seen"]
    assert text[3:] == [
        ["0", "training", "84", "0.2", "s", "ago"],
        ["1", "healing", "70", "3.0", "s", "ago"],
        ["2", "dead", "80", "1.2", "s", "ago"],
    ]


def test_table_before_the_first_step() -> None:
    assert "step 0   loss -   - steps/s   kills 0   Lighthouse down" in drawn(BEFORE)


@pytest.mark.parametrize("state", list(GroupState))
def test_every_state_can_be_shown(state: GroupState) -> None:
    group = GroupSnapshot(group=0, state=state, step=3, last_seen_s=1.0)
    snapshot = Snapshot(step=3, steps=9, loss=1.0, step_s=0.5, kills=0, lighthouse_up=True, groups=(group,))
    assert state.value in line(snapshot)
    assert state.value in drawn(snapshot)


def test_lines_come_every_few_seconds() -> None:
    stream = io.StringIO()
    with LineView(stream) as view:
        for tenth in range(int(LINE_EVERY_S * 20) + 1):
            view.update(SEEN, 100.0 + tenth / 10)
    assert stream.getvalue().splitlines() == [line(SEEN)] * 3


def test_a_terminal_gets_the_table_and_a_file_gets_lines() -> None:
    assert isinstance(open_view(io.StringIO()), LineView)


def test_the_live_view_draws_the_newest() -> None:
    stream = io.StringIO()
    with LiveView(Console(file=stream, force_terminal=True, width=100)) as view:
        view.update(BEFORE, 0.0)
        view.update(SEEN, 0.01)  # too soon
        assert "84/200" not in stream.getvalue()
        view.update(SEEN, 1.0)
    assert "84/200" in stream.getvalue()
