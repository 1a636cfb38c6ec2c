"""Judge what a run did with its saves: read only when nobody had the state, the same one by all."""

from collections import defaultdict
from collections.abc import Iterator

from replica.ledger import EventKind
from train.evidence.eras import Eras
from train.evidence.files import Event, Evidence
from train.evidence.gaps import find_gaps
from train.evidence.history import (
    Life,
    commits,
    commits_by_step,
    group_numbers,
    is_death,
    life,
    life_of,
    quorum,
    quorum_spans,
)
from train.evidence.violations import Violation, ViolationKind


def check_backstop(evidence: Evidence, eras: Eras) -> Iterator[Violation]:
    """The violations around saves."""
    yield from _reads_beside_the_living(evidence)
    yield from _restores_differ(eras)
    yield from _restored_states_differ(evidence)
    yield from _saves_unproven(evidence)


def _reads_beside_the_living(evidence: Evidence) -> Iterator[Violation]:
    """When a group begins to read a save, no group lives that has trained."""
    if not evidence.of(EventKind.BACKSTOP_READ):
        return
    find = _living_at_reads if evidence.job is not None else _living_by_quorums
    for read, living in find(evidence):
        if living:
            groups = sorted({group for group, _ in living})
            text = f"group {read.group} read a save while groups {groups} lived"
            yield _at(ViolationKind.BACKSTOP_READ, read, text)


def _living_by_quorums(evidence: Evidence) -> Iterator[tuple[Event, set[Life]]]:
    """Each read of a save, and which lives had trained before and were in the reader's quorums after it.

    Where nobody wrote down who ended, and hosts' clocks differ, no more is known for sure.
    """
    spans, trained = quorum_spans(evidence), dict[Life, int]()
    for done in evidence.rounds_done:
        trained[life(done)] = min(done.quorum_id, trained.get(life(done), done.quorum_id))
    for read in evidence.of(EventKind.BACKSTOP_READ):
        if life_of(read) in spans:
            first = spans[life_of(read)][0]
            yield read, {one for one, since in trained.items() if since < first <= spans[one][1]}


def _living_at_reads(evidence: Evidence) -> Iterator[tuple[Event, set[Life]]]:
    """Each read of a save, and which lives had trained and had not ended when it began."""
    reads = sorted(
        (event.t - event.number("seconds"), index)
        for index, event in enumerate(evidence.events)
        if event.kind is EventKind.BACKSTOP_READ
    )
    living = _Living()
    events = iter(sorted(evidence.events, key=lambda event: event.t))
    event = next(events, None)
    for began_t, index in reads:
        while event is not None and event.t <= began_t:
            living.take(event)
            event = next(events, None)
        yield evidence.events[index], set(living.trained.values())


class _Living:
    """Which lives have trained and have not ended, by group, as far as events tell."""

    def __init__(self) -> None:
        self.trained: dict[int, Life] = {}
        self._current: dict[int, Life] = {}
        self._dead: set[Life] = set()

    def take(self, event: Event) -> None:
        """Takes in the next event."""
        group = event.group
        if event.kind is EventKind.JOB_STARTED:
            self.trained.clear()  # a cluster starts only when all processes of the one before are gone
        elif event.kind is EventKind.DEATH_SEEN:
            for dead in group_numbers(event.values["dead"]):
                self.trained.pop(dead, None)
        elif group is None:
            return
        elif is_death(event):
            self.trained.pop(group, None)
            if group in self._current:
                # Its other ranks may finish a round before they notice.
                self._dead.add(self._current[group])
        elif event.kind in (EventKind.GROUP_STARTED, EventKind.GROUP_LAUNCHED, EventKind.GROUP_PAUSED):
            self.trained.pop(group, None)
        if event.incarnation is not None and group is not None:
            self._current[group] = life_of(event)
            if event.kind is EventKind.ROUND_DONE and life_of(event) not in self._dead:
                self.trained[group] = life_of(event)


def _restores_differ(eras: Eras) -> Iterator[Violation]:
    """All groups go on from one and the same save."""
    for era in eras.disasters:
        first, *others = era.reads
        save = first.values["save"]
        for other in others:
            if (own := other.values["save"]) != save:
                text = f"group {other.group} went on from {own}, group {first.group} from {save}"
                yield _at(ViolationKind.RESTORES_DIFFER, other, text)


def _restored_states_differ(evidence: Evidence) -> Iterator[Violation]:
    """What was read is the state that the save's step had left."""
    for read in evidence.of(EventKind.BACKSTOP_READ):
        step, digest = read.integer("step") or 0, read.values["digest"]
        known = {line.digest for line in commits_by_step(evidence).get(step - 1, ()) if line.t < read.t}
        known.discard(None)
        if digest is not None and known and digest not in known:
            text = f"group {read.group} read a state of step {step} that no group had left"
            yield _at(ViolationKind.DIGEST_MISMATCH, read, text)


def _saves_unproven(evidence: Evidence) -> Iterator[Violation]:
    """A save is of a state that the life which wrote it had come to, in the quorum named.

    The state that a life ends with may be saved in a later quorum, when its first writer has died.
    """
    reached: dict[tuple[Life, int], set[int]] = defaultdict(set)
    for line in commits(evidence.lines):
        reached[life(line), line.step + 1].add(quorum(line))
    for heal in evidence.of(EventKind.HEAL):
        reached[life_of(heal), heal.integer("step") or 0].add(heal.integer("quorum_id") or 0)
    unknown = find_gaps(evidence).ledgers
    for save in (save for save in evidence.of(EventKind.SAVE) if save.group not in unknown):
        step, quorum_id = save.integer("step") or 0, save.integer("quorum_id")
        quorums, is_last = reached[life_of(save), step], (life_of(save), step + 1) not in reached
        later = is_last and quorum_id is not None and quorum_id > max(quorums, default=0)
        if not quorums or not (later or quorum_id is None or quorum_id in quorums):
            text = f"group {save.group} saved step {step}, and had not come to it in that quorum"
            yield _at(ViolationKind.SAVE_UNPROVEN, save, text)


def _at(kind: ViolationKind, event: Event, text: str) -> Violation:
    return Violation(kind=kind, text=text, group=event.group, step=event.integer("step"))
