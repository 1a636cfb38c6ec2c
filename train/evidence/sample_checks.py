"""Judge the rounds of a run: every sample of a committed step was computed, and exactly once."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from replica.ledger import EventKind, LedgerLine, Outcome
from train.evidence.eras import Era, Eras
from train.evidence.files import Evidence, RoundDone
from train.evidence.gaps import find_gaps
from train.evidence.history import (
    Attempt,
    Life,
    Place,
    commits,
    commits_by_attempt,
    life,
    lives_by_quorum,
    quorum,
    rounds_by_attempt,
)
from train.evidence.violations import Violation, ViolationKind


def check_samples(
    evidence: Evidence, eras: Eras, rounds_per_pass: float | None = None
) -> Iterator[Violation]:
    """The violations in the rounds of a run; `rounds_per_pass` as for `train.evidence.checker.check`."""
    yield from _rounds_wrong(evidence, eras)
    yield from _rounds_differ(evidence)
    yield from _samples_lost(evidence)
    yield from _samples_repeated(evidence)
    yield from _rounds_recomputed(evidence)
    hashes = _input_hashes(evidence, eras)
    yield from _inputs_changed(hashes)
    passes = {era.rounds: _rounds_per_pass(evidence, era) for era in eras.all}
    yield from _inputs_repeated(hashes, passes if rounds_per_pass is None else {}, rounds_per_pass)


def _rounds_per_pass(evidence: Evidence, era: Era) -> float | None:
    """As a group told what it reads of the data, or as it told the figure itself."""
    for event in evidence.of(EventKind.DATA):
        if (per_round := event.number("samples_per_micro_batch") * era.ranks) > 0:
            return event.number("dataset_size") / per_round
    told = (event.number("rounds_per_pass") for event in evidence.of(EventKind.GROUP_STARTED))
    return next((value for value in told if value > 0), None)


def _rounds_wrong(evidence: Evidence, eras: Eras) -> Iterator[Violation]:
    """A committed line names each round once, each with a group of its quorum."""
    for line in commits(evidence.lines):
        wanted = list(range(eras.of(line).rounds))
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

    A round counts as well that a life of the group, one which came to see this quorum, kept from
    earlier attempts, all of them retried.
    """
    runs: dict[tuple[int, int, int], list[RoundDone]] = defaultdict(list)
    for done in evidence.rounds_done:
        runs[done.step, done.round, done.group].append(done)
    tries, present, unknown = _tries(evidence), lives_by_quorum(evidence), find_gaps(evidence).all
    for (step, quorum_id), lines in commits_by_attempt(evidence).items():
        for number, group in sorted({pair for line in lines for pair in line.rounds}):
            if group not in unknown and not any(
                life(run) in present[quorum_id]
                and run.quorum_id in _kept_quorums(tries[life(run), step], quorum_id)
                for run in runs[step, number, group]
            ):
                yield Violation(
                    kind=ViolationKind.SAMPLE_LOST,
                    text=f"round {number} of step {step} was not run by group {group}, which is named for it",
                    group=group,
                    step=step,
                    quorum_id=quorum_id,
                )


def _tries(evidence: Evidence) -> Mapping[tuple[Life, int], list[LedgerLine]]:
    """The lines of each life at each step, in order."""
    found: dict[tuple[Life, int], list[LedgerLine]] = defaultdict(list)
    for line in evidence.lines:
        found[life(line), line.step].append(line)
    return found


def _kept_quorums(tries: Sequence[LedgerLine], quorum_id: int) -> set[int]:
    """The quorum ids whose finished rounds a life still held when it committed in `quorum_id`.

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


def _rounds_recomputed(evidence: Evidence) -> Iterator[Violation]:
    """A round is computed again only when the life that held it is lost, or has lost it.

    A life holds its rounds as long as it is in every quorum that tries the step, unless it heals
    to a later step or discards an attempt at this one.
    """
    places: dict[tuple[int, int], list[RoundDone]] = defaultdict(list)
    quorums: dict[int, set[int]] = defaultdict(set)
    for done in evidence.rounds_done:
        places[done.step, done.round].append(done)
        quorums[done.step].add(done.quorum_id)
    present, by_life = lives_by_quorum(evidence), _lines_by_life(evidence)
    unknown = find_gaps(evidence).all
    for (step, number), dones in sorted(places.items()):
        for held, again in pairwise(sorted(dones, key=lambda done: done.quorum_id)):
            between = [q for q in quorums[step] if held.quorum_id < q <= again.quorum_id]
            was_there = all(life(held) in present[q] for q in between)
            if held.group in unknown or not between or not was_there:
                continue
            if not _gave_up(by_life[life(held)], held, again.quorum_id):
                yield Violation(
                    kind=ViolationKind.ROUND_RECOMPUTED,
                    text=f"group {again.group} computed round {number} of step {step} again, "
                    f"though group {held.group} lived and held it",
                    group=again.group,
                    step=step,
                    quorum_id=again.quorum_id,
                )


def _lines_by_life(evidence: Evidence) -> Mapping[Life, list[LedgerLine]]:
    found: dict[Life, list[LedgerLine]] = defaultdict(list)
    for line in evidence.lines:
        found[life(line)].append(line)
    return found


def _gave_up(lines: Sequence[LedgerLine], held: RoundDone, until: int) -> bool:
    """Whether a life, by its lines, no longer had the round that it held when quorum `until` began."""
    first, after = bisect_left(lines, held.quorum_id, key=quorum), bisect_right(lines, until, key=quorum)
    return any(
        (line.healed_from is not None and line.step > held.step and held.quorum_id < quorum(line) <= until)
        or (
            line.outcome is Outcome.DISCARDED
            and line.step == held.step
            and held.quorum_id <= quorum(line) < until
        )
        for line in lines[first:after]
    )


def _input_hashes(evidence: Evidence, eras: Eras) -> Mapping[Place, set[str]]:
    """Hashes of the inputs that were fed at each place, whatever became of them.

    All that are given equally many rounds in a step are fed the same, however many groups there are.
    """
    found: dict[Place, set[str]] = defaultdict(set)
    for done in evidence.rounds_done:
        if done.input_xxh64 is not None:
            found[eras.at(done.quorum_id).rounds, done.step, done.round].add(done.input_xxh64)
    return found


def _inputs_changed(fed: Mapping[Place, set[str]]) -> Iterator[Violation]:
    for (_, step, number), hashes in sorted(fed.items()):
        if len(hashes) > 1:
            text = f"round {number} of step {step} was fed {len(hashes)} different inputs"
            yield Violation(kind=ViolationKind.INPUT_CHANGED, text=text, step=step)


def _inputs_repeated(
    fed: Mapping[Place, set[str]], passes: Mapping[int, float | None], default: float | None
) -> Iterator[Violation]:
    """Within one pass over the data no two places are fed the same input.

    `passes` gives the rounds in a pass, by the number of rounds in a step.
    """
    first: dict[tuple[int, str, int], Place] = {}
    for place, hashes in sorted(fed.items()):
        rounds, step, number = place
        per_pass = passes.get(rounds, default)
        one_pass = 0 if per_pass is None else int((step * rounds + number) / per_pass)
        for value in sorted(hashes):
            earlier = first.setdefault((rounds, value, one_pass), place)
            if earlier != place:
                where = f"round {earlier[2]} of step {earlier[1]}"
                text = f"round {number} of step {step} was fed the input of {where}"
                yield Violation(kind=ViolationKind.INPUT_REPEATED, text=text, step=step)
