"""The checker: clean histories pass, and every kind of violation that is planted is found."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from altered_history import altered, with_event, with_line, with_lines, without
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from simulated_history import Phase, history

from replica.ledger import EventKind, LedgerLine, Outcome
from train.evidence.checker import check
from train.evidence.eras import find_eras
from train.evidence.files import Damage, Event, Evidence
from train.evidence.history import commits, commits_by_attempt, is_exact
from train.evidence.repeats import find_repeats
from train.evidence.violations import ViolationKind

seeds = st.integers(min_value=0, max_value=10**9)
shapes = st.fixed_dictionaries(
    {
        "groups": st.integers(2, 5),
        "rounds": st.integers(1, 7),
        "kills": st.integers(0, 5),
        "mode": st.sampled_from(["fast", "exact"]),
        "keeps": st.booleans(),
        "disasters": st.integers(0, 3),
        "regroups": st.booleans(),
    }
)


def kinds(evidence: Evidence, **how: Any) -> set[ViolationKind]:
    return {violation.kind for violation in check(evidence, **how)}


@settings(deadline=None, max_examples=150)
@given(seed=seeds, shape=shapes)
def test_clean_histories_pass(seed: int, shape: dict[str, Any]) -> None:
    assert check(history(seed, **shape)) == []


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("keeps", [False, True])
def test_every_phase_of_death_is_clean(phase: Phase, keeps: bool) -> None:
    evidence = history(5, phase=phase, keeps=keeps)
    assert len(evidence.deaths) == 3
    assert check(evidence) == []


# Planted violations: each takes a clean history and a source of chance.


def shared_commits(evidence: Evidence) -> list[list[LedgerLine]]:
    return [lines for lines in commits_by_attempt(evidence).values() if len(lines) > 1]


def committed_rounds(evidence: Evidence) -> list[Event]:
    attempts = commits_by_attempt(evidence)
    done = evidence.of(EventKind.ROUND_DONE)
    return [event for event in done if (event.values["step"], event.values["quorum_id"]) in attempts]


def killed_group(evidence: Evidence) -> int:
    group = evidence.deaths[0].group
    assert group is not None
    return group


def damaged_line(evidence: Evidence, random: Random) -> Evidence:
    return replace(evidence, damage=(Damage(file="events.jsonl", line=3, why="torn"),))


def lines_without_room(evidence: Evidence, random: Random) -> Evidence:
    gap = {"file": "ledger/group-1.jsonl", "lines": 2, "since": 1.0, "reason": "No space left on device"}
    lost = Event(t=9.5, kind=EventKind.RECORDS_LOST, values={"group": 1, **gap})
    return replace(evidence, events=(*evidence.events, lost))


def test_a_gap_is_named_by_file_and_length() -> None:
    (violation,) = check(lines_without_room(history(1, kills=0), Random(0)))
    assert violation.text == (
        "lines missing from ledger/group-1.jsonl: 2, of the 8.5 s in which none could be written: "
        "No space left on device"
    )
    assert violation.group == 1


def nothing_committed(evidence: Evidence, random: Random) -> Evidence:
    return with_lines(evidence, lambda line: None if line.outcome is Outcome.COMMITTED else line)


def step_committed_twice(evidence: Evidence, random: Random) -> Evidence:
    line = random.choice(commits(evidence.lines))
    return with_line(evidence, line, line, line)


def ledger_rolls_back(evidence: Evidence, random: Random) -> Evidence:
    lines = evidence.ledgers[random.choice(list(evidence.ledgers))]
    return with_line(
        evidence, lines[-1], lines[-1], replace(lines[-1], step=random.randrange(lines[-1].step))
    )


def survivors_replay(evidence: Evidence, random: Random) -> Evidence:
    *_, before, last = sorted(shared_commits(evidence), key=lambda lines: lines[0].step)
    again = [replace(line, step=before[0].step, quorum_id=10**6) for line in last]
    for old, new in zip(last, again, strict=True):
        evidence = with_line(evidence, old, old, new)
    return evidence


def everyone_starts_over(evidence: Evidence, random: Random) -> Evidence:
    """All groups die and a fresh life of one of them commits step 1 again, though step 2 was in."""
    line = next(line for line in commits(evidence.lines) if line.step == 1)
    fresh = replace(line, incarnation="fresh", quorum_id=10**6)
    last = evidence.ledgers[line.group][-1]
    return with_line(evidence, last, last, fresh)


def step_in_no_ledger(evidence: Evidence, random: Random) -> Evidence:
    gone = random.choice([line.step for line in commits(evidence.lines)][:-1])
    gone = min(gone, max(line.step for line in evidence.lines) - 1)
    return with_lines(evidence, lambda line: None if line.step == gone else line)


def heal_not_in_ledger(evidence: Evidence, random: Random) -> Evidence:
    return with_lines(evidence, lambda line: replace(line, healed_from=None))


def heal_without_event(evidence: Evidence, random: Random) -> Evidence:
    return without(evidence, lambda event: event.kind is EventKind.HEAL)


def heal_of_no_bytes(evidence: Evidence, random: Random) -> Evidence:
    for event in evidence.of(EventKind.HEAL):
        evidence = with_event(evidence, event, altered(event, bytes=0))
    return evidence


def heal_that_nobody_sent(evidence: Evidence, random: Random) -> Evidence:
    return without(evidence, lambda event: event.kind is EventKind.HEAL_SENT)


def heal_larger_than_sent(evidence: Evidence, random: Random) -> Evidence:
    for event in evidence.of(EventKind.HEAL_SENT):
        evidence = with_event(evidence, event, altered(event, bytes=event.number("bytes") - 1))
    return evidence


def digest_drifts(evidence: Evidence, random: Random) -> Evidence:
    line = random.choice(random.choice(shared_commits(evidence)))
    return with_line(evidence, line, replace(line, digest="another"))


def round_left_out(evidence: Evidence, random: Random) -> Evidence:
    line = random.choice(commits(evidence.lines))
    gone = random.choice(line.rounds)
    return with_line(evidence, line, replace(line, rounds=tuple(r for r in line.rounds if r != gone)))


def round_named_twice(evidence: Evidence, random: Random) -> Evidence:
    line = random.choice(commits(evidence.lines))
    return with_line(evidence, line, replace(line, rounds=(*line.rounds, random.choice(line.rounds))))


def round_of_a_stranger(evidence: Evidence, random: Random) -> Evidence:
    line = random.choice(commits(evidence.lines))
    return with_line(evidence, line, replace(line, rounds=((line.rounds[0][0], 99), *line.rounds[1:])))


def groups_name_other_owners(evidence: Evidence, random: Random) -> Evidence:
    line = random.choice(random.choice([some for some in shared_commits(evidence) if some]))
    number, owner = random.choice(line.rounds)
    other = random.choice([group for group in line.participants if group != owner])
    rounds = tuple((n, other if n == number else group) for n, group in line.rounds)
    return with_line(evidence, line, replace(line, rounds=rounds))


def round_never_run(evidence: Evidence, random: Random) -> Evidence:
    return with_event(evidence, random.choice(committed_rounds(evidence)))


def round_run_for_another_quorum(evidence: Evidence, random: Random) -> Evidence:
    event = random.choice(committed_rounds(evidence))
    return with_event(evidence, event, altered(event, quorum_id=10**6))


def round_run_by_another_group(evidence: Evidence, random: Random) -> Evidence:
    event = random.choice(committed_rounds(evidence))
    return with_event(evidence, event, altered(event, group=99))


def round_run_by_two_groups(evidence: Evidence, random: Random) -> Evidence:
    event = random.choice(committed_rounds(evidence))
    return with_event(evidence, event, event, altered(event, group=99))


def round_run_twice(evidence: Evidence, random: Random) -> Evidence:
    event = random.choice(committed_rounds(evidence))
    return with_event(evidence, event, event, event)


def round_run_again_though_its_group_lived(evidence: Evidence, random: Random) -> Evidence:
    event, line = random.choice(
        [
            (event, line)
            for event in committed_rounds(evidence)
            for line in evidence.ledgers[event.values["group"]]
            if line.incarnation == event.incarnation and (line.quorum_id or 0) > event.values["quorum_id"]
        ]
    )
    return with_event(evidence, event, event, altered(event, quorum_id=line.quorum_id, group=99))


def other_input_in_a_lost_attempt(evidence: Evidence, random: Random) -> Evidence:
    event = random.choice(committed_rounds(evidence))
    lost = altered(event, quorum_id=10**6, input_xxh64="ffffffffffffffff")
    return with_event(evidence, event, event, lost)


def same_input_elsewhere(evidence: Evidence, random: Random) -> Evidence:
    one, other = random.sample(committed_rounds(evidence), 2)
    return with_event(evidence, one, altered(one, input_xxh64=other.values["input_xxh64"]))


def quorum_ids_start_again(evidence: Evidence, random: Random) -> Evidence:
    line = evidence.ledgers[random.choice(list(evidence.ledgers))][-1]
    return with_line(evidence, line, replace(line, quorum_id=0))


def quorum_of_other_members(evidence: Evidence, random: Random) -> Evidence:
    line = random.choice(random.choice(shared_commits(evidence)))
    return with_line(evidence, line, replace(line, participants=(*line.participants, 99)))


def quorum_event_of_other_members(evidence: Evidence, random: Random) -> Evidence:
    event = random.choice(evidence.of(EventKind.QUORUM))
    return with_event(evidence, event, event, altered(event, participants=[98, 99]))


def quorum_of_two_lives(evidence: Evidence, random: Random) -> Evidence:
    line = random.choice(commits(evidence.lines))
    return with_line(evidence, line, line, replace(line, step=line.step + 1, incarnation="second"))


def restart_without_a_kill(evidence: Evidence, random: Random) -> Evidence:
    victim = killed_group(evidence)
    return without(evidence, lambda event: event.kind is EventKind.KILL and event.group == victim)


def kill_of_another_group(evidence: Evidence, random: Random) -> Evidence:
    for kill in evidence.deaths:
        evidence = with_event(evidence, kill, altered(kill, group=99))
    return evidence


def kill_of_the_lighthouse(evidence: Evidence, random: Random) -> Evidence:
    for kill in evidence.deaths:
        evidence = with_event(evidence, kill, altered(kill, group=None, target="lighthouse"))
    return evidence


def life_without_a_launch(evidence: Evidence, random: Random) -> Evidence:
    launch = random.choice(evidence.of(EventKind.GROUP_LAUNCHED))
    return with_event(evidence, launch)


def save_read_while_others_live(evidence: Evidence, random: Random) -> Evidence:
    event = random.choice(evidence.of(EventKind.ROUND_DONE))
    values = {"group": 1, "incarnation": "reader", "step": 0, "save": "any", "digest": None}
    return with_event(evidence, event, event, replace(event, kind=EventKind.BACKSTOP_READ, values=values))


def groups_go_on_from_other_saves(evidence: Evidence, random: Random) -> Evidence:
    read = random.choice(evidence.of(EventKind.BACKSTOP_READ))
    twin = altered(read, save="another")
    return with_event(evidence, read, read, twin)


def save_of_a_step_that_its_group_never_had(evidence: Evidence, random: Random) -> Evidence:
    save = random.choice(evidence.of(EventKind.SAVE))
    return with_event(evidence, save, altered(save, step=save.values["step"] + 50))


def save_by_a_life_that_trained_nothing(evidence: Evidence, random: Random) -> Evidence:
    save = random.choice(evidence.of(EventKind.SAVE))
    return with_event(evidence, save, altered(save, incarnation="another"))


def save_named_after_another_quorum(evidence: Evidence, random: Random) -> Evidence:
    save = random.choice(evidence.of(EventKind.SAVE))
    return with_event(evidence, save, altered(save, quorum_id=0))


def restored_state_is_not_what_was_saved(evidence: Evidence, random: Random) -> Evidence:
    read = random.choice(evidence.of(EventKind.BACKSTOP_READ))
    return with_event(evidence, read, altered(read, digest="another"))


def steps_before_the_save_are_replayed(evidence: Evidence, random: Random) -> Evidence:
    """After a disaster the job goes on from before the save that was read."""
    for read in evidence.of(EventKind.BACKSTOP_READ):
        evidence = with_event(evidence, read, altered(read, step=read.values["step"] + 1))
    return evidence


def steps_after_the_save_are_skipped(evidence: Evidence, random: Random) -> Evidence:
    for read in evidence.of(EventKind.BACKSTOP_READ):
        evidence = with_event(evidence, read, altered(read, step=read.values["step"] - 1))
    return evidence


def steps_are_replayed_without_a_read(evidence: Evidence, random: Random) -> Evidence:
    return without(evidence, lambda event: event.kind is EventKind.BACKSTOP_READ)


Plant = Callable[[Evidence, Random], Evidence]
PLANTS: dict[ViolationKind, list[Plant]] = {
    ViolationKind.LINE_DAMAGED: [damaged_line, lines_without_room],
    ViolationKind.NOTHING_COMMITTED: [nothing_committed],
    ViolationKind.STEP_FELL: [step_committed_twice, ledger_rolls_back],
    ViolationKind.STEP_REPLAYED: [survivors_replay, everyone_starts_over],
    ViolationKind.STEP_MISSING: [step_in_no_ledger],
    ViolationKind.HEAL_MISSING: [heal_not_in_ledger],
    ViolationKind.HEAL_UNPROVEN: [
        heal_without_event, heal_of_no_bytes, heal_that_nobody_sent, heal_larger_than_sent,
    ],
    ViolationKind.DIGEST_MISMATCH: [digest_drifts],
    ViolationKind.ROUNDS_WRONG: [round_left_out, round_named_twice, round_of_a_stranger],
    ViolationKind.ROUNDS_DIFFER: [groups_name_other_owners],
    ViolationKind.SAMPLE_LOST: [round_never_run, round_run_for_another_quorum, round_run_by_another_group],
    ViolationKind.SAMPLE_REPEATED: [round_run_by_two_groups, round_run_twice],
    ViolationKind.ROUND_RECOMPUTED: [round_run_again_though_its_group_lived],
    ViolationKind.INPUT_CHANGED: [other_input_in_a_lost_attempt],
    ViolationKind.INPUT_REPEATED: [same_input_elsewhere],
    ViolationKind.QUORUM_ID_FELL: [quorum_ids_start_again],
    ViolationKind.QUORUM_ID_REUSED: [
        quorum_of_other_members, quorum_event_of_other_members, quorum_of_two_lives,
    ],
    ViolationKind.SURVIVOR_RESTARTED: [
        restart_without_a_kill, kill_of_another_group, kill_of_the_lighthouse,
    ],
    ViolationKind.LIFE_UNLAUNCHED: [life_without_a_launch],
    ViolationKind.BACKSTOP_READ: [save_read_while_others_live],
}  # fmt: skip
PLANTED = [(kind, plant) for kind, plants in PLANTS.items() for plant in plants]
# These need a history with a disaster in it.
DISASTROUS: dict[ViolationKind, list[Plant]] = {
    ViolationKind.BACKSTOP_READ: [save_read_while_others_live],
    ViolationKind.RESTORES_DIFFER: [groups_go_on_from_other_saves],
    ViolationKind.SAVE_UNPROVEN: [
        save_of_a_step_that_its_group_never_had, save_by_a_life_that_trained_nothing,
        save_named_after_another_quorum,
    ],
    ViolationKind.DIGEST_MISMATCH: [digest_drifts, restored_state_is_not_what_was_saved],
    ViolationKind.STEP_FELL: [ledger_rolls_back],
    ViolationKind.STEP_REPLAYED: [steps_before_the_save_are_replayed, steps_are_replayed_without_a_read],
    ViolationKind.HEAL_MISSING: [steps_after_the_save_are_skipped],
    ViolationKind.SAMPLE_LOST: [round_never_run],
    ViolationKind.SAMPLE_REPEATED: [round_run_twice],
    ViolationKind.INPUT_CHANGED: [other_input_in_a_lost_attempt],
}  # fmt: skip
PLANTED_AFTER_A_DISASTER = [(kind, plant) for kind, plants in DISASTROUS.items() for plant in plants]


def test_every_kind_is_planted() -> None:
    assert {*PLANTS, *DISASTROUS} == set(ViolationKind)


@pytest.mark.parametrize(("kind", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
@settings(deadline=None, max_examples=15)
@given(seed=seeds, keeps=st.booleans(), mode=st.sampled_from(["fast", "exact"]))
def test_planted_violation_is_found(
    kind: ViolationKind, plant: Plant, seed: int, keeps: bool, mode: str
) -> None:
    evidence = history(seed, keeps=keeps, mode=mode, phase=Phase.MID_ROUNDS)
    assert check(evidence) == []
    assert kind in kinds(plant(evidence, Random(seed)))


@pytest.mark.parametrize(
    ("kind", "plant"), PLANTED_AFTER_A_DISASTER, ids=[plant.__name__ for _, plant in PLANTED_AFTER_A_DISASTER]
)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.filter_too_much])
@given(seed=seeds, regroups=st.booleans(), mode=st.sampled_from(["fast", "exact"]))
def test_planted_violation_is_found_in_spite_of_a_disaster(
    kind: ViolationKind, plant: Plant, seed: int, regroups: bool, mode: str
) -> None:
    evidence = history(seed, kills=0, disasters=1, save_every=4, regroups=regroups, mode=mode)
    again = [repeat for repeat in find_repeats(evidence) if repeat.restored]
    assume(evidence.of(EventKind.SAVE) and len(again) > 1)
    assert check(evidence) == []
    assert kind in kinds(plant(evidence, Random(seed)))


def test_a_step_that_was_lost_in_a_disaster_must_be_computed_again() -> None:
    evidence = history(7, kills=0, disasters=1, mode="exact")
    eras = find_eras(evidence)
    again = next(repeat for repeat in find_repeats(evidence) if repeat.restored)
    place = (again.step, eras.at(again.quorum_id))
    skipped = with_lines(evidence, lambda line: None if (line.step, eras.of(line)) == place else line)
    found = [violation.step for violation in check(skipped) if violation.kind is ViolationKind.STEP_MISSING]
    assert found == [again.step]


# The corner: a step that only the dead had.


def split_commit(mode: str) -> Evidence:
    return history(3, kills=1, mode=mode, phase=Phase.ONLY_VICTIM_COMMITS)


def recommitted_step(evidence: Evidence) -> list[list[LedgerLine]]:
    """The committed lines of the step that was computed twice, the dead group's first."""
    by_attempt = commits_by_attempt(evidence)
    steps = [step for step, _ in by_attempt]
    twice = next(step for step in steps if steps.count(step) == 2)
    return [lines for (step, _), lines in sorted(by_attempt.items()) if step == twice]


def test_step_that_only_the_dead_had_may_differ_in_fast_mode() -> None:
    dead, living = recommitted_step(split_commit("fast"))
    assert dead[0].digest != living[0].digest
    assert check(split_commit("fast")) == []


def test_step_that_only_the_dead_had_has_the_same_bits_in_exact_mode() -> None:
    evidence = split_commit("exact")
    assert check(evidence) == []
    dead, _ = recommitted_step(evidence)
    drifted = with_line(evidence, dead[0], replace(dead[0], digest="another"))
    assert kinds(drifted) == {ViolationKind.DIGEST_MISMATCH}


def test_living_groups_must_agree_on_a_recommitted_step() -> None:
    evidence = split_commit("fast")
    _, living = recommitted_step(evidence)
    drifted = with_line(evidence, living[0], replace(living[0], digest="another"))
    assert kinds(drifted) == {ViolationKind.DIGEST_MISMATCH}


def test_committer_that_lives_on_makes_it_a_replay() -> None:
    evidence = split_commit("fast")
    (dead,), living = recommitted_step(evidence)
    late = replace(dead, step=dead.step + 1, quorum_id=living[0].quorum_id, outcome=Outcome.DISCARDED)
    assert ViolationKind.STEP_REPLAYED in kinds(with_line(evidence, dead, dead, late))


def test_joiner_that_took_the_step_makes_it_a_replay() -> None:
    evidence = split_commit("fast")
    (dead,), _ = recommitted_step(evidence)
    witness = next(
        line for line in evidence.lines if line.group != dead.group and line.quorum_id == dead.quorum_id
    )
    took = replace(witness, step=dead.step + 1, outcome=Outcome.DISCARDED, rounds=())
    found = check(with_line(evidence, witness, took))
    assert ViolationKind.STEP_REPLAYED in {violation.kind for violation in found}


# Kept rounds.


def kept_round(evidence: Evidence) -> tuple[LedgerLine, LedgerLine]:
    """A retried line, and the commit of the same group and step in a later quorum."""
    for retried in evidence.lines:
        for line in commits(evidence.ledgers[retried.group]):
            later = (line.quorum_id or 0) > (retried.quorum_id or 0)
            if retried.outcome is Outcome.RETRIED and line.step == retried.step and later:
                return retried, line
    raise AssertionError("the history keeps no round")


def test_round_kept_through_a_retry_counts_and_a_discarded_one_is_lost() -> None:
    evidence = history(2, keeps=True, phase=Phase.MID_ROUNDS)
    retried, _ = kept_round(evidence)
    assert check(evidence) == []
    dropped = with_line(evidence, retried, replace(retried, outcome=Outcome.DISCARDED))
    assert kinds(dropped) == {ViolationKind.SAMPLE_LOST}


def run_of(evidence: Evidence, line: LedgerLine) -> Event:
    """A round that the group of the line ran in the attempt of the line."""
    done = evidence.of(EventKind.ROUND_DONE)
    place = (line.group, line.step, line.quorum_id)
    return next(e for e in done if (e.group, e.values["step"], e.values["quorum_id"]) == place)


def test_round_kept_by_an_earlier_life_is_lost() -> None:
    evidence = history(2, keeps=True, phase=Phase.MID_ROUNDS)
    done = run_of(evidence, kept_round(evidence)[0])
    earlier = with_event(evidence, done, altered(done, incarnation="earlier"))
    assert ViolationKind.SAMPLE_LOST in kinds(earlier)


def test_round_is_computed_again_only_when_nobody_holds_it() -> None:
    evidence = history(2, keeps=True, phase=Phase.MID_ROUNDS)
    retried, line = kept_round(evidence)
    done = run_of(evidence, retried)
    again = with_event(evidence, done, done, altered(done, quorum_id=line.quorum_id))
    assert kinds(again) == {ViolationKind.ROUND_RECOMPUTED}
    assert ViolationKind.ROUND_RECOMPUTED not in kinds(
        with_line(again, retried, replace(retried, outcome=Outcome.DISCARDED))
    )
    healed = replace(line, step=line.step + 1, healed_from=(line.group + 1,), outcome=Outcome.RETRIED)
    assert ViolationKind.ROUND_RECOMPUTED not in kinds(with_line(again, line, healed))
    sign = (line.group, line.quorum_id)
    absent = without(
        with_lines(again, lambda each: None if (each.group, each.quorum_id) == sign else each),
        lambda event: (event.group, event.values.get("quorum_id")) == sign,
    )
    assert ViolationKind.ROUND_RECOMPUTED not in kinds(absent)


# Inputs.


def test_inputs_may_come_again_in_the_next_pass_over_the_data() -> None:
    evidence = history(1, kills=0, rounds=4)
    wrapped = evidence
    for event in evidence.of(EventKind.ROUND_DONE):
        number = event.values["step"] * 4 + event.values["round"]
        wrapped = with_event(wrapped, event, altered(event, input_xxh64=f"{number % 20:016x}"))
    assert kinds(wrapped) == {ViolationKind.INPUT_REPEATED}
    assert check(wrapped, rounds_per_pass=20) == []
    assert kinds(wrapped, rounds_per_pass=21) == {ViolationKind.INPUT_REPEATED}
    told = wrapped.of(EventKind.GROUP_STARTED)[0]
    assert check(with_event(wrapped, told, altered(told, rounds_per_pass=20))) == []


def test_inputs_that_are_not_known_are_not_compared() -> None:
    evidence = history(1)
    for event in evidence.of(EventKind.ROUND_DONE):
        evidence = with_event(evidence, event, altered(event, input_xxh64=None))
    assert check(evidence) == []


# Lives.


def in_place(evidence: Evidence) -> Evidence:
    """As if the launcher had restarted the group inside its one launch."""
    job, *_ = evidence.of(EventKind.JOB_STARTED)
    seen: set[int | None] = set()

    def again(event: Event) -> bool:
        known = event.kind is EventKind.GROUP_LAUNCHED and event.group in seen
        seen.add(event.group)
        return known

    return with_event(without(evidence, again), job, altered(job, max_restarts=3))


def test_launcher_that_restarts_in_place_may_have_many_lives_per_launch() -> None:
    evidence = history(4)
    assert check(in_place(evidence)) == []


def test_a_joiner_may_fail_and_start_again_without_a_kill() -> None:
    evidence = history(4)
    launch = evidence.of(EventKind.GROUP_LAUNCHED)[-1]
    failed = replace(launch, kind=EventKind.GROUP_STARTED, values={"group": launch.group, "incarnation": "x"})
    assert check(with_event(evidence, launch, launch, failed, launch)) == []


def test_runs_that_no_local_cluster_started_are_not_asked_for_launches() -> None:
    evidence = history(4)
    outside = (EventKind.JOB_STARTED, EventKind.GROUP_LAUNCHED, EventKind.KILL, EventKind.GROUP_EXITED)
    assert check(without(evidence, lambda event: event.kind in outside)) == []


def test_a_group_that_its_operator_evicted_is_no_restarted_survivor() -> None:
    evidence = history(4)
    killed = without(evidence, lambda event: event.kind is EventKind.KILL)
    assert ViolationKind.SURVIVOR_RESTARTED in kinds(killed)
    evicted = replace(
        evidence,
        events=tuple(
            replace(event, kind=EventKind.GROUP_EVICTED) if event.kind is EventKind.KILL else event
            for event in evidence.events
        ),
    )
    assert check(evicted) == []


# Heals.


def test_donor_that_died_in_the_step_is_not_asked_for_its_bytes() -> None:
    evidence = without(history(4, kills=1), lambda event: event.kind is EventKind.HEAL_SENT)
    heal = evidence.of(EventKind.HEAL)[0]
    donor, step = heal.values["healed_from"], heal.values["step"]
    assert ViolationKind.HEAL_UNPROVEN in kinds(evidence)
    died = with_lines(evidence, lambda line: None if (line.group, line.step) == (donor, step) else line)
    assert ViolationKind.HEAL_UNPROVEN not in kinds(died)
    # What it wrote of the step before that attempt does not count.
    named = with_event(evidence, heal, altered(heal, quorum_id=10**6))
    assert ViolationKind.HEAL_UNPROVEN not in kinds(named)


def test_mode_is_known_from_the_groups_where_no_job_tells_it() -> None:
    evidence = without(history(1), lambda event: event.kind is EventKind.JOB_STARTED)
    assert not is_exact(evidence)
    for event in evidence.of(EventKind.GROUP_STARTED):
        evidence = with_event(evidence, event, altered(event, mode="exact"))
    assert is_exact(evidence)


def test_violations_say_where() -> None:
    evidence = history(1, kills=0)
    line = evidence.ledgers[1][4]
    (found,) = check(with_line(evidence, line, replace(line, digest="another")))
    assert (found.group, found.step, found.quorum_id) == (1, 4, line.quorum_id)
    assert found.text == "after step 4 group 1 has another state than group 0"
