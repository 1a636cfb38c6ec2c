"""The reference trainer, except that its ranks die at planned places of a step, by SIGKILL.

HEADWAY_WALK holds a `Plan` as JSON. Its deaths come about one after the other, most of them once all
groups are back. The survivors of one take two steps without the dead and then wait for it, so that
a walk takes few steps, however slow the machine is. `walk.jsonl` beside the events says who died
where. Also serves as the launcher of groups of one rank, which start faster without torchrun.
"""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lighthouse.client import status
from replica.attempt import Attempt
from replica.averaging import GradientSum
from replica.bridge.manager import ManagerBridge
from replica.bridge.process_group import CrossGroupProcessGroup
from replica.ledger import EventKind, EventLog, KillTarget, events_path
from replica.opening import Opening
from replica.transfer import donor, lane
from replica.transfer.wire import ChunkIs
from train.__main__ import main

VARIABLE = "HEADWAY_WALK"
POLL_S = 0.02
PATIENCE_S = 20.0
STEPS_WITHOUT_THE_DEAD = 2
# Whoever waits for the dead takes a step now and then, or it would be taken for frozen.
STEP_EVERY_S = 10.0
# The last steps of the job wait until the walk is through.
LAST_STEPS = 3


class Place(StrEnum):
    """Where in a step a rank dies."""

    QUORUM = "quorum"  # it has asked and is not answered
    CONFIGURE = "configure"  # connected to the members of a new quorum
    AGREE = "agree"  # the other ranks of its group wait for its ballot
    AGREED = "agreed"  # and has not begun a round
    JOINER = "joiner"  # it has got a part of the state that it fetches
    DONOR = "donor"  # it has sent a part of the state
    COMPUTE = "compute"  # in a later round than its first, when another group has finished two
    REDUCE = "reduce"
    MAX_REDUCED = "max reduced"  # between the two collectives of the exact sum
    VOTE = "vote"
    VOTED = "voted"
    COMMITTED = "committed"  # and has not asked for the next quorum
    SPLIT = "split"  # committed a step whose sum failed in all other groups


# These need a group that is lost already: they do not wait until all are back.
AMID_RECOVERY = (Place.CONFIGURE, Place.JOINER, Place.DONOR)
BEFORE = {
    Place.AGREE: (Opening, "_agree"),
    Place.CONFIGURE: (CrossGroupProcessGroup, "_introduce"),
    Place.REDUCE: (GradientSum, "reduce"),
    Place.VOTE: (ManagerBridge, "vote"),
}
AFTER = {
    Place.AGREED: (Opening, "_agree"),
    Place.MAX_REDUCED: (CrossGroupProcessGroup, "max_in_place"),
    Place.VOTED: (ManagerBridge, "vote"),
}


@dataclass(frozen=True, kw_only=True)
class Death:
    """One death; group None: of the group that comes to the place first."""

    place: Place
    group: int | None
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The deaths in order, and the step that is split: only `split_group` gets its sum. -1: none."""

    groups: int
    deaths: tuple[Death, ...]
    split_step: int = -1
    split_group: int = -1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        raw = json.loads(text)
        deaths = tuple(Death(**{**death, "place": Place(death["place"])}) for death in raw.pop("deaths"))
        return cls(deaths=deaths, **raw)


def read_notes(out: Path) -> list[dict[str, Any]]:
    """What the groups of the run in `out` have noted: what (asks, back, dies, split), group, step."""
    path = out / "walk.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Walk:
    """The plan, as one rank sees it."""

    def __init__(self, plan: Plan, out: Path, *, group: int, rank: int, steps: int, lighthouse: str) -> None:
        self.plan, self.out, self.group, self.rank, self.steps = plan, out, group, rank, steps
        self.lighthouse = lighthouse
        self.step, self.incarnation = 0, ""
        self.asked = self.back = self.split = False

    def note(self, what: str, **more: Any) -> None:
        line = {"what": what, "group": self.group, "rank": self.rank, "step": self.step, **more}
        with (self.out / "walk.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def noted(self, what: str) -> list[dict[str, Any]]:
        return [note for note in read_notes(self.out) if note["what"] == what]

    def lacking(self, what: str) -> set[int]:
        """Groups that have not noted this since their last death, or ever."""
        found = set(range(self.plan.groups))
        for note in read_notes(self.out):
            if note["what"] == "dies":
                found.add(note["group"])
            elif note["what"] == what:
                found.discard(note["group"])
        return found

    def next_death(self) -> Death | None:
        done = len(self.noted("dies"))
        return self.plan.deaths[done] if done < len(self.plan.deaths) else None

    def armed(self, place: Place) -> bool:
        """Whether the next death is this rank's, here and now."""
        death = self.next_death()
        if death is None or (death.place, death.rank) != (place, self.rank):
            return False
        if death.group is not None and death.group != self.group:
            return False
        if place is Place.CONFIGURE and not self.back:
            return False
        return place in AMID_RECOVERY or not self.lacking("back")

    def come_to(self, place: Place) -> None:
        """Die here if the plan says so."""
        if self.armed(place):
            self.die(place)

    def die(self, place: Place) -> None:
        try:
            (self.out / f"death-{len(self.noted('dies'))}").touch(exist_ok=False)
        except FileExistsError:
            return  # Another group was faster.
        with EventLog(self.out) as events:
            target = KillTarget.RANK
            events.write(
                EventKind.KILL, group=self.group, rank=self.rank, target=target, step=self.step, place=place
            )
        self.note("dies", place=place, incarnation=self.incarnation)
        os.kill(os.getpid(), signal.SIGKILL)

    def wait_while(self, condition: Callable[[], bool], at_most_s: float) -> bool:
        """Wait as long as the condition holds; False when that was too long."""
        deadline = time.monotonic() + at_most_s
        while condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def must_wait(self) -> bool:
        """Whether this group waits before its next quorum, for the dead or for a death."""
        death, deaths = self.next_death(), self.noted("dies")
        lost = self.lacking("back")
        if self.step >= self.steps - LAST_STEPS and (death or lost):
            return True
        if deaths and self.step >= deaths[-1]["step"] + STEPS_WITHOUT_THE_DEAD and self.lacking("asks"):
            return True
        quorum_of_another = death and death.place is Place.QUORUM and death.group != self.group
        return bool(quorum_of_another and not lost)


def rounds_elsewhere(out: Path, step: int, quorum_id: int, group: int) -> int:
    """The most rounds that another group has finished in an attempt."""
    done: Counter[int] = Counter()
    for line in events_path(out).read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "round_done" and (event["step"], event["quorum_id"]) == (step, quorum_id):
            done[event["group"]] += 1
    return max((count for other, count in done.items() if other != group), default=0)


def instead_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorator: calls of owner.name go to the function, with the original as first argument."""

    def put(function: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: function(original, *args, **kwargs))

    return put


def take_places(walk: Walk) -> None:
    """Have the walk told of every place that lies before or after a call."""
    for place, (owner, name) in BEFORE.items():

        @instead_of(owner, name)
        def before(original: Any, *args: Any, place: Place = place, **kwargs: Any) -> Any:
            walk.come_to(place)
            return original(*args, **kwargs)

    for place, (owner, name) in AFTER.items():

        @instead_of(owner, name)
        def after(original: Any, *args: Any, place: Place = place, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if result is not False:
                walk.come_to(place)
            return result


def take_opening(walk: Walk) -> None:
    @instead_of(Opening, "next_turn")
    def next_turn(original: Any, opening: Opening) -> Any:
        walk.step, walk.incarnation = opening._group.step, opening._group.record.incarnation
        walk.wait_while(walk.must_wait, STEP_EVERY_S)
        return original(opening)

    @instead_of(ManagerBridge, "begin")
    def begin(original: Any, bridge: ManagerBridge) -> Any:
        if walk.rank == 0 and not walk.asked:
            walk.asked = True
            walk.note("asks")
        answered = threading.Event()
        if walk.armed(Place.QUORUM):
            threading.Thread(target=die_when_asking, args=(walk, answered), daemon=True).start()
        start = original(bridge)
        answered.set()
        return start


def die_when_asking(walk: Walk, answered: threading.Event) -> None:
    """Die once the Lighthouse counts this group among those that ask."""
    while not answered.wait(POLL_S):
        jobs = status(walk.lighthouse)["jobs"]
        if any(f"group {walk.group}" in job["forming"]["asking"] for job in jobs):
            walk.come_to(Place.QUORUM)


def take_attempt(walk: Walk) -> None:
    @instead_of(Attempt, "backward")
    def backward(original: Any, attempt: Attempt, *args: Any) -> None:
        if attempt._group.sum.held and walk.armed(Place.COMPUTE):
            where = (walk.out, attempt.step, attempt.quorum_id, walk.group)
            if walk.wait_while(lambda: rounds_elsewhere(*where) < 2, PATIENCE_S):
                walk.come_to(Place.COMPUTE)
        original(attempt, *args)

    @instead_of(Attempt, "commit")
    def commit(original: Any, attempt: Attempt) -> bool:
        committed: bool = original(attempt)
        if committed and walk.rank == 0 and not walk.back:
            walk.note("back")
        walk.back |= committed
        if committed and attempt.step == walk.plan.split_step and walk.group == walk.plan.split_group:
            walk.note("split")
            walk.come_to(Place.SPLIT)
        if committed:
            walk.come_to(Place.COMMITTED)
        return committed

    @instead_of(CrossGroupProcessGroup, "sum_in_place")
    def sum_in_place(original: Any, group: CrossGroupProcessGroup, tensor: Any) -> None:
        original(group, tensor)
        fails = walk.step == walk.plan.split_step and walk.group != walk.plan.split_group
        if fails and not walk.split:
            walk.split = True
            walk.wait_while(lambda: not walk.noted("split"), PATIENCE_S)
            raise RuntimeError("the sum is lost here")


def take_heal(walk: Walk) -> None:
    @instead_of(lane, "checksum")
    def checksum(original: Any, task: Any) -> Any:
        walk.come_to(Place.JOINER)
        return original(task)

    @instead_of(donor._Visit, "_send_chunk")
    def send_chunk(original: Any, visit: Any, question: Any) -> None:
        if walk.armed(Place.DONOR):
            data = visit._staging.chunk(question.state_id, question.chunk)
            visit._line.send(ChunkIs(chunk=question.chunk, nbytes=len(data)), data[:1024])
            walk.come_to(Place.DONOR)
        original(visit, question)


def start() -> None:
    environment = os.environ
    walk = Walk(
        Plan.from_json(environment[VARIABLE]),
        Path(environment["HEADWAY_OUT"]),
        group=int(environment["REPLICA_GROUP_ID"]),
        rank=int(environment.get("RANK", "0")),
        steps=int(environment["HEADWAY_STEPS"]),
        lighthouse=environment["TORCHFT_LIGHTHOUSE"],
    )
    for take in (take_places, take_opening, take_attempt, take_heal):
        take(walk)
    words = sys.argv[1:]
    # As a launcher it is given torchrun's flags, each with a value, and then the script.
    while words[0].startswith("--"):
        words = words[2:]
    main(words[1:] if words[0] == __file__ else words)


if __name__ == "__main__":
    start()
