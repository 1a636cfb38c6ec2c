"""Judge a run by its evidence: pure, from ledgers and events alone; every broken promise is named."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from replica.ledger import EventKind, LedgerLine, Outcome
from train.evidence.backstop_checks import check_backstop
from train.evidence.eras import Eras, Lineage, find_eras
from train.evidence.files import Event, Evidence
from train.evidence.gaps import find_gaps
from train.evidence.history import (
    Life,
    commits,
    group_numbers,
    is_exact,
    life,
    life_of,
    lives,
    quorum,
)
from train.evidence.repeats import Repeat, find_repeats
from train.evidence.sample_checks import check_samples
from train.evidence.violations import Violation, ViolationKind


def check(evidence: Evidence, *, rounds_per_pass: float | None = None) -> list[Violation]:
    """All violations in the evidence; an empty list means that every promise was kept.

    `rounds_per_pass` is the number of rounds in one pass over the data, after which the same
    samples come again; without it (and without the field of that name on `group_started`) every
    input that is fed twice counts as repeated.
    """
    eras = find_eras(evidence)
    repeats = find_repeats(evidence)
    checks = (
        _damaged(evidence),
        _nothing_committed(evidence),
        _steps_fell(evidence, repeats),
        _steps_replayed(repeats),
        _steps_missing(evidence, eras),
        _heals_missing(evidence),
        _heals_unproven(evidence),
        _digests(evidence, eras, repeats),
        check_samples(evidence, eras, rounds_per_pass),
        _quorum_ids_fell(evidence),
        _quorum_ids_reused(evidence),
        _survivors_restarted(evidence),
        _lives_unlaunched(evidence),
        check_backstop(evidence, eras),
    )
    return [violation for found in checks for violation in found]


def _damaged(evidence: Evidence) -> Iterator[Violation]:
    for damage in evidence.damage:
        text = f"line {damage.line} of {damage.file} cannot be read: {damage.why}"
        yield Violation(kind=ViolationKind.LINE_DAMAGED, text=text)
    for lost in evidence.of(EventKind.RECORDS_LOST):
        lasted_s = lost.t - lost.number("since")
        text = (
            f"lines missing from {lost.values['file']}: {lost.integer('lines')}, of the {lasted_s:.1f} s in "
            f"which none could be written: {lost.values['reason']}"
        )
        yield Violation(kind=ViolationKind.LINE_DAMAGED, text=text, group=lost.group)


def _nothing_committed(evidence: Evidence) -> Iterator[Violation]:
    if not commits(evidence.lines) and not find_gaps(evidence).ledgers:
        yield Violation(kind=ViolationKind.NOTHING_COMMITTED, text="no group committed any step")


def _steps_fell(evidence: Evidence, repeats: list[Repeat]) -> Iterator[Violation]:
    """Committed steps of a ledger rise, but for a new life that takes up a step nobody living had.

    Whether anybody had it is unknown where evidence is missing.
    """
    is_unknown = bool(find_gaps(evidence).all)
    excused = {(repeat.step, repeat.quorum_id) for repeat in repeats if repeat.excused}
    for group, lines in evidence.ledgers.items():
        done = commits(lines)
        for earlier, line in pairwise(done):
            new_life = line.incarnation != earlier.incarnation
            is_excused = is_unknown or (line.step, line.quorum_id) in excused
            if line.step > earlier.step or (new_life and is_excused):
                continue
            text = f"group {group} committed step {line.step} after step {earlier.step}"
            yield Violation.at(ViolationKind.STEP_FELL, line, text)


def _steps_replayed(repeats: list[Repeat]) -> Iterator[Violation]:
    for repeat in repeats:
        if repeat.excused:
            continue
        why = f"group {repeat.takers[0][0]} lived and had it" if repeat.takers else "later steps were in"
        yield Violation(
            kind=ViolationKind.STEP_REPLAYED,
            text=f"step {repeat.step} was committed again in quorum {repeat.quorum_id} though {why}",
            step=repeat.step,
            quorum_id=repeat.quorum_id,
        )


def _steps_missing(evidence: Evidence, eras: Eras) -> Iterator[Violation]:
    """No gap in the final trajectory from step 0 on, or from the save with which the evidence begins."""
    if find_gaps(evidence).ledgers:
        return
    steps = {line.step for line in commits(evidence.lines) if eras.counts(line)}
    for step in range(eras.all[0].step, max(steps, default=0)):
        if step not in steps:
            text = f"step {step} is in no ledger, though step {max(steps)} is"
            yield Violation(kind=ViolationKind.STEP_MISSING, text=text, step=step)


def _heals_missing(evidence: Evidence) -> Iterator[Violation]:
    """A life commits step after step from 0 or the save that it read; only a heal lets it skip any."""
    reads = evidence.of(EventKind.BACKSTOP_READ)
    restored = {life_of(event): event.integer("step") or 0 for event in reads}
    next_step: dict[Life, int] = {}
    healed: set[Life] = set()
    for line in evidence.lines:
        if line.healed_from is not None:
            healed.add(life(line))
        if line.outcome is not Outcome.COMMITTED:
            continue
        expected = next_step.get(life(line), restored.get(life(line), 0))
        is_told = line.group not in find_gaps(evidence).events  # else it may have read a save
        if line.step > expected and life(line) not in healed and is_told:
            text = f"group {line.group} committed step {line.step}, stood at step {expected}, never healed"
            yield Violation.at(ViolationKind.HEAL_MISSING, line, text)
        next_step[life(line)] = line.step + 1
        healed.discard(life(line))


def _heals_unproven(evidence: Evidence) -> Iterator[Violation]:
    """Every heal in a ledger has its event with bytes, and donors that sent at least as many."""
    gaps = find_gaps(evidence)
    heals = [heal for heal in evidence.of(EventKind.HEAL) if heal.number("bytes") > 0]
    told = {(heal.group, heal.incarnation, heal.integer("step")) for heal in heals}
    for line in evidence.lines:
        if line.healed_from is None or line.group in gaps.events:
            continue
        if (line.group, line.incarnation, line.step) not in told:
            text = f"group {line.group} reports no bytes for its heal"
            yield Violation.at(ViolationKind.HEAL_UNPROVEN, line, text)
    taken, donors = _taken(heals)
    sent: dict[int | None, float] = defaultdict(float)
    for event in evidence.of(EventKind.HEAL_SENT):
        sent[event.integer("step")] += event.number("bytes")
    for step, size in taken.items():
        if any(group in gaps.all for group, _ in donors[step]):
            continue
        # A donor that died in this very attempt may have sent more than it lived to write down.
        if size > sent[step] and all(_outlived(evidence, donor, step) for donor in donors[step]):
            text = f"joiners took {size:.0f} bytes at step {step}, donors sent {sent[step]:.0f}"
            yield Violation(kind=ViolationKind.HEAL_UNPROVEN, text=text, step=step)


def _taken(heals: list[Event]) -> tuple[dict[int, float], dict[int, set[tuple[int, int]]]]:
    """Per step: the bytes that joiners took, and the donors that they name, each with the quorum's id."""
    taken: dict[int, float] = defaultdict(float)
    donors: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for heal in heals:
        step = heal.integer("step") or 0
        taken[step] += heal.number("bytes")
        quorum_id = heal.integer("quorum_id") or 0
        donors[step].update((group, quorum_id) for group in group_numbers(heal.values["healed_from"]))
    return taken, donors


def _outlived(evidence: Evidence, donor: tuple[int, int], step: int) -> bool:
    """Whether a donor lived to write down the attempt in which it gave its state."""
    group, quorum_id = donor
    lines = evidence.ledgers.get(group, ())
    return any(line.step == step and quorum(line) >= quorum_id for line in lines)


def _digests(evidence: Evidence, eras: Eras, repeats: list[Repeat]) -> Iterator[Violation]:
    """One state per step, as far as steps were computed alike; in fast mode one for each quorum of a
    step that was computed again."""
    apart = set() if is_exact(evidence) else {repeat.step for repeat in repeats if repeat.excused}
    found: dict[tuple[int, Lineage, int | None], dict[str, LedgerLine]] = defaultdict(dict)
    for line in commits(evidence.lines):
        if line.digest is not None:
            key = eras.of(line).past_of(line.step), line.quorum_id if line.step in apart else None
            found[line.step, *key].setdefault(line.digest, line)
    for (step, *_), by_digest in sorted(found.items(), key=lambda item: item[0][0]):
        first, *others = by_digest.values()
        for other in others:
            text = f"after step {step} group {other.group} has another state than group {first.group}"
            yield Violation.at(ViolationKind.DIGEST_MISMATCH, other, text)


def _quorum_ids_fell(evidence: Evidence) -> Iterator[Violation]:
    for group, lines in evidence.ledgers.items():
        highest = -1
        for line in lines:
            if line.quorum_id is None:
                continue
            if line.quorum_id < highest:
                text = f"group {group} was in quorum {line.quorum_id} after quorum {highest}"
                yield Violation.at(ViolationKind.QUORUM_ID_FELL, line, text)
            highest = max(highest, line.quorum_id)


def _quorum_ids_reused(evidence: Evidence) -> Iterator[Violation]:
    """A quorum id stands for one list of groups, each in one of its lives, for ever."""
    members: dict[int, tuple[int, ...]] = {}
    member_lives: dict[tuple[int, int], str] = {}
    for quorum_id, participants, (group, incarnation) in _quorums_seen(evidence):
        first = members.setdefault(quorum_id, participants)
        first_life = member_lives.setdefault((quorum_id, group), incarnation)
        if first != participants:
            text = f"quorum {quorum_id} names groups {list(first)} and also {list(participants)}"
        elif first_life != incarnation:
            text = f"quorum {quorum_id} holds two lives of group {group}"
        else:
            continue
        yield Violation(kind=ViolationKind.QUORUM_ID_REUSED, text=text, group=group, quorum_id=quorum_id)


def _quorums_seen(evidence: Evidence) -> Iterator[tuple[int, tuple[int, ...], Life]]:
    for line in evidence.lines:
        if line.quorum_id is not None and line.participants:
            yield line.quorum_id, tuple(sorted(line.participants)), life(line)
    for event in evidence.of(EventKind.QUORUM):
        quorum_id, participants = event.integer("quorum_id"), event.values["participants"]
        if quorum_id is not None and participants and event.group is not None:
            yield quorum_id, tuple(sorted(participants)), (event.group, event.incarnation or "")


def _survivors_restarted(evidence: Evidence) -> Iterator[Violation]:
    """A life that had committed ends by a kill, an eviction or a pause of its group, or with the job."""
    if evidence.job is None:
        return
    trained = {life(line) for line in commits(evidence.lines)}
    ends = _indices(evidence, _excuses)
    latest: dict[int, tuple[int, Life]] = {}
    for index, one in lives(evidence):
        group = one[0]
        begun, earlier = latest.get(group, (index, None))
        excuses = sum(len(_within(ends[key], begun, index)) for key in (group, None))
        if earlier in trained and not excuses:
            text = f"group {group} was restarted though nothing had killed it"
            yield Violation(kind=ViolationKind.SURVIVOR_RESTARTED, text=text, group=group)
        latest[group] = index, one


def _excuses(event: Event) -> bool:
    """Whether somebody ended the group on purpose, or the cluster as a whole had gone and came again.

    That it exited by itself is no excuse, nor is a kill of the Lighthouse, which is of no group.
    """
    ends = (EventKind.KILL, EventKind.GROUP_EVICTED, EventKind.GROUP_PAUSED, EventKind.FINISHED)
    return event.kind is EventKind.JOB_STARTED or (event.group is not None and event.kind in ends)


def _lives_unlaunched(evidence: Evidence) -> Iterator[Violation]:
    """Each launch has one life at most, unless the launcher restarts in place."""
    if evidence.job is None or evidence.job.restarts_in_place:
        return
    launches = _indices(evidence, lambda event: event.kind is EventKind.GROUP_LAUNCHED)
    seen: dict[int, int] = defaultdict(int)
    for index, (group, incarnation) in lives(evidence):
        seen[group] += 1
        before = len(_within(launches[group], 0, index))
        if seen[group] > before:
            text = f"life {incarnation} of group {group} is its number {seen[group]} of {before} launches"
            yield Violation(kind=ViolationKind.LIFE_UNLAUNCHED, text=text, group=group)


def _indices(evidence: Evidence, wanted: Callable[[Event], bool]) -> Mapping[int | None, list[int]]:
    """Where the events wanted are in the log, by group; under None those about no group."""
    found: dict[int | None, list[int]] = defaultdict(list)
    for index, event in enumerate(evidence.events):
        if wanted(event):
            found[event.group].append(index)
    return found


def _within(indices: Sequence[int], start: int, end: int) -> range:
    """The places of those from start on and before end."""
    return range(bisect_left(indices, start), bisect_left(indices, end))
