"""Judge the rounds of a run: every sample of a committed step was computed, and exactly once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from replica.ledger import EventKind, LedgerLine, Outcome
from train.evidence.files import Evidence, RoundDone
from train.evidence.history import (
    Attempt,
    Place,
    commits,
    commits_by_attempt,
    input_hashes,
    rounds_by_attempt,
    rounds_per_step,
)
from train.evidence.violations import Violation, ViolationKind


def check_samples(evidence: Evidence, rounds_per_pass: float | None = None) -> Iterator[Violation]:
    """The violations in the rounds of a run; `rounds_per_pass` as for `train.evidence.checker.check`."""
    per_pass = rounds_per_pass if rounds_per_pass is not None else _rounds_per_pass(evidence)
    yield from _rounds_wrong(evidence)
    yield from _rounds_differ(evidence)
    yield from _samples_lost(evidence)
    yield from _samples_repeated(evidence)
    yield from _inputs_changed(evidence)
    yield from _inputs_repeated(evidence, per_pass)


def _rounds_per_pass(evidence: Evidence) -> float | None:
    told = (event.number("rounds_per_pass") for event in evidence.of(EventKind.GROUP_STARTED))
    return next((value for value in told if value > 0), None)


def _rounds_wrong(evidence: Evidence) -> Iterator[Violation]:
    """A committed line names each round once, each with a group of its quorum."""
    wanted = list(range(rounds_per_step(evidence)))
    for line in commits(evidence.lines):
        numbers = sorted(number for number, _ in line.rounds)
        if numbers != wanted:
            text = f"group {line.group} committed step {line.step} with rounds {numbers}, not {wanted}"
            yield Violation.at(ViolationKind.ROUNDS_WRONG, line, text)
        strangers = {group for _, group in line.rounds} - set(line.participants)
        if strangers:
            text = f"step {line.step} has rounds of groups {sorted(strangers)}, not in the quorum"
            yield Violation.at(ViolationKind.ROUNDS_WRONG, line, text)


def _rounds_differ(evidence: Evidence) -> Iterator[Violation]:
    for (step, _), (first, *others) in commits_by_attempt(evidence).items():
        for other in others:
            if sorted(other.rounds) != sorted(first.rounds):
                text = f"groups {first.group} and {other.group} name other rounds for step {step}"
                yield Violation.at(ViolationKind.ROUNDS_DIFFER, other, text)


def _samples_lost(evidence: Evidence) -> Iterator[Violation]:
    """Each committed round was really run: by the group named, for this very attempt.

    A round that the group kept from earlier attempts, all of them retried, counts as well.
    """
    done: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for event in evidence.rounds_done:
        done[event.step, event.round, event.group].add(event.quorum_id)
    tries: dict[tuple[int, int], list[LedgerLine]] = defaultdict(list)
    for line in evidence.lines:
        tries[line.group, line.step].append(line)
    for (step, quorum_id), lines in commits_by_attempt(evidence).items():
        for number, group in sorted({pair for line in lines for pair in line.rounds}):
            if not done[step, number, group] & _kept_quorums(tries[group, step], quorum_id):
                yield Violation(
                    kind=ViolationKind.SAMPLE_LOST,
                    text=f"round {number} of step {step} was not run by group {group}, which is named for it",
                    group=group,
                    step=step,
                    quorum_id=quorum_id,
                )


def _kept_quorums(tries: Sequence[LedgerLine], quorum_id: int) -> set[int]:
    """The quorum ids whose finished rounds a group still held when it committed in `quorum_id`.

    `tries` are its ledger's lines of that step, in order.
    """
    kept: set[int] = set()
    for line in tries:
        if line.quorum_id is None or line.quorum_id >= quorum_id:
            continue
        if line.outcome is Outcome.RETRIED:
            kept.add(line.quorum_id)
        else:
            kept.clear()
    return kept | {quorum_id}


def _samples_repeated(evidence: Evidence) -> Iterator[Violation]:
    """In an attempt that was committed no round was run twice."""
    committed = commits_by_attempt(evidence)
    for attempt, dones in rounds_by_attempt(evidence).items():
        if attempt in committed:
            yield from _run_twice(attempt, dones)


def _run_twice(attempt: Attempt, dones: Iterable[RoundDone]) -> Iterator[Violation]:
    runs: dict[int, list[int]] = defaultdict(list)
    for done in dones:
        runs[done.round].append(done.group)
    for number, groups in sorted(runs.items()):
        if len(groups) > 1:
            yield Violation(
                kind=ViolationKind.SAMPLE_REPEATED,
                text=f"round {number} of step {attempt[0]} was run twice, by groups {sorted(groups)}",
                step=attempt[0],
                quorum_id=attempt[1],
            )


def _inputs_changed(evidence: Evidence) -> Iterator[Violation]:
    for (step, number), hashes in sorted(input_hashes(evidence).items()):
        if len(hashes) > 1:
            text = f"round {number} of step {step} was fed {len(hashes)} different inputs"
            yield Violation(kind=ViolationKind.INPUT_CHANGED, text=text, step=step)


def _inputs_repeated(evidence: Evidence, rounds_per_pass: float | None) -> Iterator[Violation]:
    """Within one pass over the data no two places are fed the same input."""
    rounds = rounds_per_step(evidence)
    first: dict[tuple[str, int], Place] = {}
    for place, hashes in sorted(input_hashes(evidence).items()):
        step, number = place
        one_pass = 0 if rounds_per_pass is None else int((step * rounds + number) / rounds_per_pass)
        for value in sorted(hashes):
            earlier = first.setdefault((value, one_pass), place)
            if earlier != place:
                where = f"round {earlier[1]} of step {earlier[0]}"
                text = f"round {number} of step {step} was fed the input of {where}"
                yield Violation(kind=ViolationKind.INPUT_REPEATED, text=text, step=step)
