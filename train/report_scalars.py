"""The scalars of a run, by step, written for TensorBoard; needs the extra `tensorboard`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from replica.errors import UserError
from replica.ledger import EventKind, LedgerLine
from train.evidence.eras import find_eras
from train.evidence.figures import last_commits
from train.evidence.files import Evidence

# By their suffix the files of an earlier report are known, and replaced.
SUFFIX = ".headway"


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One point of one curve; `t` is seconds since the epoch."""

    name: str
    step: int
    t: float
    value: float


def scalars(evidence: Evidence) -> Iterator[Scalar]:
    """The curves of a run, each point of a step that counts in the end, steps rising."""
    kills = sorted(kill.t for kill in evidence.of(EventKind.KILL))
    before: LedgerLine | None = None
    for line in last_commits(evidence, find_eras(evidence)):
        values = {
            "train/loss": line.loss,
            "train/grad_norm": line.grad_norm,
            "train/learning_rate": line.lr,
            "run/step_s": line.t - before.t if before is not None and line.t > before.t else None,
            "run/groups_in_quorum": len(line.participants),
            "run/kills_so_far": sum(t <= line.t for t in kills),
        }
        for name, value in values.items():
            if value is not None:
                yield Scalar(name=name, step=line.step, t=line.t, value=float(value))
        before = line
    for event in evidence.of(EventKind.EVALUATION):
        yield Scalar(name="eval/loss", step=event.integer("step") or 0, t=event.t, value=event.number("loss"))


def require_tensorboard() -> None:
    """Raises UserError where TensorBoard is not installed."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise UserError(
            "--tensorboard needs TensorBoard, which is not installed: pip install 'headway[tensorboard]'"
        ) from None


def write_scalars(evidence: Evidence, folder: Path) -> None:
    """Write the curves into a folder of their own, in place of those that an earlier report left there.

    Raises UserError where TensorBoard is not installed, OSError where a file cannot be written.
    """
    require_tensorboard()
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    writer = EventFileWriter(str(folder), filename_suffix=SUFFIX)
    try:
        for one in scalars(evidence):
            summary = Summary(value=[Summary.Value(tag=one.name, simple_value=one.value)])
            writer.add_event(Event(wall_time=one.t, step=one.step, summary=summary))
    finally:
        writer.close()
