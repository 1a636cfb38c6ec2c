"""Thousands of seeded lives of a job that steps under a nemesis; and broken steps, each of which is caught.

HEADWAY_SIM_SEEDS=N plays N seeds instead; a failing seed is named, and
`python tests/replica/sim_step.py SEED` plays it again.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pytest
from sim_step import SimulatedSteps
from sim_step_judge import Token
from sim_step_rank import Cause, SimRank
from sim_step_wire import SimLighthouse
from sim_step_world import Fault, Point

from replica import rounds, step
from replica.averaging import Reduced, ReduceFailed
from replica.ledger import Outcome, Reason
from replica.rounds import Peer, Plan

SEEDS = int(os.environ.get("HEADWAY_SIM_SEEDS", "3000"))
SEEDS_PER_MUTATION = 1000
KILLS = (Fault.KILL_GROUP, Fault.KILL_RANK)


def test_rules_hold_and_everybody_commits_again_when_faults_stop() -> None:
    counted: Counter[str] = Counter()
    struck: Counter[tuple[Fault, Point | None]] = Counter()
    for seed in range(SEEDS):
        life = SimulatedSteps(seed).live()
        counted += life.job.judge.counted
        struck += life.world.struck
    assert counted["commits"] > 10 * SEEDS, "the nemesis must leave room for commits"
    assert counted["heals"] > SEEDS
    assert counted["rounds run again"] > SEEDS
    assert counted["discarded"] > SEEDS / 10
    assert counted["committed again"] > SEEDS / 10
    assert counted["dropped for a conflict"] > SEEDS / 100
    assert {fault for fault, _ in struck} == set(Fault), "every kind of fault has its turn"
    for kill in KILLS:
        assert {point for fault, point in struck if fault is kill} == set(Point), "and death comes everywhere"


def test_a_seed_can_be_played_again() -> None:
    first, second = SimulatedSteps(7).live(), SimulatedSteps(7).live()
    assert first.job.judge.counted == second.job.judge.counted
    assert first.world.struck == second.world.struck
    assert first.world.now_s == second.world.now_s


REAL_DEAL = rounds.deal
REAL_VERDICT = step.verdict
REAL_OUTCOME = step.outcome
REAL_FORGET = SimRank.forget


def nothing_is_kept(_peers: Sequence[Peer], _rounds: int) -> dict[int, int]:
    """What members hold is dealt out again."""
    return {}


def both_are_kept(peers: Sequence[Peer], _rounds: int) -> dict[int, int]:
    """Of two that hold the same round, each keeps what the other does not have."""
    return {index: peer.group for peer in peers for index in peer.held}


def joiners_count(*, step: int, quorum_id: int, rounds: int, members: Iterable[Peer]) -> Plan:
    """What is held of an older step is taken for this one's."""
    now = [Peer(group=peer.group, step=step, held=peer.held) for peer in members]
    return REAL_DEAL(step=step, quorum_id=quorum_id, rounds=rounds, members=now)


def without_held(plan: Plan) -> int:
    """Ranks compare all of their plans but for what is held."""
    return hash((plan.step, plan.quorum_id, plan.owners)) & (2**63 - 1)


def always(_ballots: object) -> bool:
    """The ranks of a group go on, whatever they say."""
    return True


def counts_ignored(result: Reduced | ReduceFailed) -> Reason:
    """A sum that came about is good enough."""
    reason = REAL_VERDICT(result)
    return Reason.NONE if reason is Reason.ROUNDS_MISSING else reason


def non_finite_ignored(result: Reduced | ReduceFailed) -> Reason:
    """So is one that is not a number."""
    reason = REAL_VERDICT(result)
    return Reason.NONE if reason is Reason.NON_FINITE else reason


def all_is_kept(reason: Reason) -> Outcome:
    """Gradients that are not finite are kept too."""
    return Outcome.COMMITTED if reason is Reason.NONE else Outcome.RETRIED


def nothing_survives(reason: Reason) -> Outcome:
    """An attempt that fails takes its rounds with it."""
    return Outcome.COMMITTED if reason is Reason.NONE else Outcome.DISCARDED


def unless(*causes: Cause) -> Callable[[SimRank, Cause], None]:
    """Rounds are not dropped for these causes."""

    def forget(rank: SimRank, cause: Cause) -> None:
        if cause not in causes:
            REAL_FORGET(rank, cause)

    return forget


def all_that_is_held(rank: SimRank, *, contribute: bool) -> tuple[Token, ...]:
    """A group that sits out brings what it has."""
    return tuple(rank.held.values())


def only_for_members(lighthouse: SimLighthouse, members: object) -> bool:
    """The id stays although a member has failed."""
    return members != lighthouse.last.members


MUTATIONS: dict[str, tuple[object, str, object]] = {
    "what is held is dealt again": (rounds, "_kept", nothing_is_kept),
    "a conflict is cut in pieces": (rounds, "_kept", both_are_kept),
    "joiners count as up to date": (rounds, "deal", joiners_count),
    "plans are compared without what is held": (Plan, "fingerprint", property(without_held)),
    "ranks always agree": (step, "agree", always),
    "missing rounds are committed": (step, "verdict", counts_ignored),
    "gradients that are not finite are committed": (step, "verdict", non_finite_ignored),
    "gradients that are not finite are kept": (step, "outcome", all_is_kept),
    "finished rounds are thrown away": (step, "outcome", nothing_survives),
    "rounds are kept over a heal": (SimRank, "forget", unless(Cause.HEALED, Cause.NOT_KEPT)),
    "rounds are kept over a commit": (SimRank, "forget", unless(Cause.COMMITTED)),
    "both keep a round that two hold": (SimRank, "forget", unless(Cause.NOT_KEPT)),
    "who sits out contributes": (SimRank, "contribution", all_that_is_held),
    "the quorum id stays after a failure": (SimLighthouse, "_is_change", only_for_members),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_step_is_caught(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken = MUTATIONS[mutation]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError):
        live_all(SEEDS_PER_MUTATION)


def live_all(seeds: int) -> None:
    for seed in range(seeds):
        SimulatedSteps(seed).live()
