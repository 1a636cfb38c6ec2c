"""A run with kills has the same state after every step, bit for bit, as one that nobody disturbed."""

import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dying_trainer import VARIABLE, Death, Place, Plan, read_notes

from replica.ledger import EventKind
from train.cluster.commands import Launcher
from train.cluster.local_cluster import LocalCluster
from train.evidence.files import Evidence, read_evidence
from train.evidence.history import commits, commits_by_step
from train.pytest_plugin import StartCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
TRAINER = Path(__file__).with_name("dying_trainer.py")
TINY = Path(__file__).parents[2] / "train" / "configs" / "tiny.toml"
WAIT_S = 500.0
STEPS = 60
# A constant learning rate, so that a step is the same in jobs of any length.
JOB = {"--optimizer.schedule": "constant", "--model.dropout": "0.1"}
ROUNDS = 6
Digests = dict[int, set[str | None]]

# In groups of one rank. Group 0 hosts the store through which all others connect.
WALK = (
    Death(place=Place.QUORUM, group=1),
    Death(place=Place.JOINER, group=1),
    Death(place=Place.COMPUTE, group=0),
    Death(place=Place.CONFIGURE, group=2),
    Death(place=Place.MAX_REDUCED, group=0),
    Death(place=Place.DONOR, group=None),
    Death(place=Place.AGREED, group=1),
    Death(place=Place.VOTED, group=2),
    Death(place=Place.COMMITTED, group=0),
)
# In groups of two: the other rank waits for the dead one in the middle of something.
WALK_OF_TWO_RANKS = (
    Death(place=Place.AGREE, group=0, rank=1),
    Death(place=Place.REDUCE, group=1, rank=0),
    Death(place=Place.VOTE, group=2, rank=1),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a cluster left behind, read and judged."""

    evidence: Evidence
    report: dict[str, Any]
    notes: list[dict[str, Any]]

    @property
    def digests(self) -> Digests:
        """All digests that any group wrote after a step, by step."""
        found = commits_by_step(self.evidence)
        return {step: {line.digest for line in lines} for step, lines in found.items()}

    @property
    def deaths(self) -> list[str]:
        """The places at which groups died, in order."""
        return [event.values["place"] for event in self.evidence.deaths]


def start(start_cluster: Callable[..., LocalCluster], plan: Plan, steps: int, ranks: int = 1) -> LocalCluster:
    overrides = {**JOB, "--steps": steps, "--job.micro_batches": ranks * ROUNDS}
    return start_cluster(
        script=TRAINER,
        args=[str(TINY), *(str(word) for pair in overrides.items() for word in pair)],
        launcher=[sys.executable, str(TRAINER)] if ranks == 1 else Launcher.HEADWAY,
        groups=plan.groups,
        ranks=ranks,
        steps=steps,
        restart_delay_s=0.0,
        env={VARIABLE: plan.to_json()},
    )


def end(cluster: LocalCluster) -> Run:
    report = cluster.wait(timeout_s=WAIT_S)
    assert report["violations"] == []
    assert (report["steps_discarded"], report["steps_replayed"], report["steps_recommitted"]) == (0, 0, 0)
    return Run(evidence=read_evidence(cluster.out), report=report, notes=read_notes(cluster.out))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Digests]:
    """undisturbed(steps, ranks): the digests of one group that nothing happens to."""

    @functools.cache
    def run(ranks: int) -> Digests:
        def start_cluster(**options: Any) -> LocalCluster:
            return LocalCluster(out=tmp_path_factory.mktemp("undisturbed") / "run", **options).start()

        cluster = start(start_cluster, Plan(groups=1, deaths=()), STEPS, ranks)
        try:
            digests = end(cluster).digests
        finally:
            cluster.stop(grace_s=0.0)
        # One digest after each step, and each another one.
        assert len(set.union(*digests.values())) == len(digests) == STEPS
        return digests

    return lambda steps, ranks=1: {step: run(ranks)[step] for step in range(steps)}


def lost_rounds(run: Run) -> Counter[str]:
    """By place: rounds that a group had finished when it died, of a step committed in a later quorum."""
    last_quorum: dict[str | None, int] = defaultdict(int)
    for event in run.evidence.of(EventKind.QUORUM, EventKind.ROUND_DONE):
        last_quorum[event.incarnation] = max(event.values["quorum_id"], last_quorum[event.incarnation])
    committed_in = {line.step: line.quorum_id or 0 for line in commits(run.evidence.lines)}
    dead = {
        (note["incarnation"], note["step"]): note["place"] for note in run.notes if note["what"] == "dies"
    }
    return Counter(
        dead[done.incarnation, done.step]
        for done in run.evidence.rounds_done
        if (done.incarnation, done.step) in dead and committed_in[done.step] > last_quorum[done.incarnation]
    )


@pytest.mark.storm
@pytest.mark.parametrize(
    ("plan", "ranks"),
    [pytest.param(WALK, 1, id="one rank"), pytest.param(WALK_OF_TWO_RANKS, 2, id="two ranks")],
)
def test_a_walk_through_the_places_of_a_step(
    local_cluster: StartCluster, undisturbed: Callable[..., Digests], plan: tuple[Death, ...], ranks: int
) -> None:
    run = end(start(local_cluster, Plan(groups=3, deaths=plan), STEPS, ranks))
    assert run.deaths == [death.place for death in plan]
    assert run.digests == undisturbed(STEPS, ranks)
    lost = lost_rounds(run)
    assert run.report["rounds_recomputed"] == lost.total()
    finished_some = {Place.COMPUTE, Place.REDUCE, Place.MAX_REDUCED} & {death.place for death in plan}
    assert finished_some <= lost.keys() <= {death.place for death in plan} - {Place.QUORUM, Place.JOINER}


def test_four_groups_end_where_one_does(
    local_cluster: StartCluster, undisturbed: Callable[..., Digests]
) -> None:
    steps = 12
    run = end(start(local_cluster, Plan(groups=4, deaths=()), steps))
    assert {owner for line in commits(run.evidence.lines) for _, owner in line.rounds} == {0, 1, 2, 3}
    assert run.digests == undisturbed(steps)


# Group 1 commits this step, and the sum of all others fails.
SPLIT_STEP, SPLIT_GROUP = 6, 1
STEPS_OF_SPLIT = 14


def split(start_cluster: StartCluster, *deaths: Death) -> Run:
    plan = Plan(groups=3, deaths=deaths, split_step=SPLIT_STEP, split_group=SPLIT_GROUP)
    return end(start(start_cluster, plan, STEPS_OF_SPLIT))


def committers(run: Run, step: int) -> list[tuple[int, int | None]]:
    return [(line.group, line.quorum_id) for line in commits_by_step(run.evidence)[step]]


def test_a_step_that_only_a_dead_group_had_is_computed_again_with_the_same_bits(
    local_cluster: StartCluster, undisturbed: Callable[..., Digests]
) -> None:
    run = split(local_cluster, Death(place=Place.SPLIT, group=SPLIT_GROUP))
    assert run.deaths == [Place.SPLIT]
    (dead, first_quorum), *living = committers(run, SPLIT_STEP)
    assert dead == SPLIT_GROUP
    assert [group for group, _ in living] == [0, 2]
    assert all(quorum_id > first_quorum for _, quorum_id in living)
    assert run.digests == undisturbed(STEPS_OF_SPLIT)
    # The two rounds of the dead group; the others kept theirs.
    assert run.report["rounds_recomputed"] == lost_rounds(run)[Place.SPLIT] == 2


def test_a_step_that_only_one_living_group_has_is_taken_from_it(
    local_cluster: StartCluster, undisturbed: Callable[..., Digests]
) -> None:
    run = split(local_cluster)
    assert [group for group, _ in committers(run, SPLIT_STEP)] == [SPLIT_GROUP]
    healed = {
        line.group: (line.step, line.healed_from)
        for line in run.evidence.lines
        if line.healed_from is not None
    }
    assert healed == dict.fromkeys((0, 2), (SPLIT_STEP + 1, (SPLIT_GROUP,)))
    assert run.digests == undisturbed(STEPS_OF_SPLIT)
    assert run.report["rounds_recomputed"] == 0
