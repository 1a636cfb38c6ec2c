"""Many seeded lives of a job: crashes, vanished hosts, cut streams, server restarts, a full disk."""

from collections import deque
from collections.abc import Callable

import pytest
from simulated_job import LIMITS, SimulatedJob

from lighthouse import machine as machine_module
from lighthouse.machine import JobMachine
from lighthouse.model import Member, Quorum
from lighthouse.quorum import Decision, Ready, Reason, Rules, Situation, Waiting
from lighthouse.slot import Gone, Slot
from lighthouse.table import Effects, Table

JOIN_TIMEOUT_S = 10.0
SEEDS = range(150)


def live(seed: int) -> SimulatedJob:
    """One whole life. A failure names the seed, with which it can be played again."""
    rules = Rules(
        min_replicas=1 + seed % 2, expected_groups=(0, 3)[seed // 2 % 2], join_timeout_s=JOIN_TIMEOUT_S
    )
    job = SimulatedJob(seed, groups=2 + seed % 4, rules=rules)
    try:
        job.run(300)
        job.heal(limit_s=JOIN_TIMEOUT_S + 2 * LIMITS.heartbeat_timeout_s + 1.0)
    except AssertionError as error:
        raise AssertionError(f"seed {seed} at {job.now_s:.1f} s: {error}") from error
    return job


def test_rules_hold_and_everybody_steps_again_when_faults_stop() -> None:
    quorums = sum(len(live(seed).quorums) for seed in SEEDS)
    assert quorums > 10 * len(SEEDS), "the nemesis must leave room for quorums"


def test_a_seed_can_be_played_again() -> None:
    assert live(7).quorums == live(7).quorums


def never_changed(machine: JobMachine, _members: tuple[Member, ...]) -> bool:
    """Keeps the id although members came and went."""
    return machine._quorum is None


def told_before_written(machine: JobMachine, members: tuple[Member, ...]) -> Effects:
    """Answers first."""
    quorum = Quorum(quorum_id=machine.record.quorum_id + 1, members=members)
    return machine._issue(quorum, changed=True)


def nobody_dies(_table: Table, _slot: Slot, _gone: Gone, **_fields: object) -> Effects:
    """A broken stream is let be."""
    return []


def not_taken_back(_slot: Slot, _call: int, _now_s: float) -> None:
    """A cancelled call goes on counting."""


def everybody_at_once(situation: Situation, _rules: Rules, _now_s: float) -> Decision:
    """No minimum, no waiting."""
    members = tuple(ask.member for ask in situation.asks.values())
    return Ready(members=members) if members else Waiting(reason=Reason.NO_ASKS)


MUTATIONS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "the id stays": (JobMachine, "_is_change", never_changed),
    "told before written": (JobMachine, "_propose", told_before_written),
    "nobody dies": (Table, "lose", nobody_dies),
    "calls are not taken back": (Slot, "withdraw", not_taken_back),
    "everybody at once": (machine_module, "decide", everybody_at_once),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_machine_is_caught(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken = MUTATIONS[mutation]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises((AssertionError, KeyError)):
        deque(map(live, SEEDS), maxlen=0)
