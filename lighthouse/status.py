"""The status document: what the server knows, as plain data and without any secret."""

from collections.abc import Mapping
from typing import Any

from lighthouse.accounts import PRODUCTIVE, goodput_ratio
from lighthouse.coordinator import Coordinator
from lighthouse.machine import JobMachine
from lighthouse.model import POOL, Key, label
from lighthouse.quorum import Waiting, sentence
from lighthouse.slot import Gone, Slot
from lighthouse.toll import Death

Document = dict[str, Any]


def describe(coordinator: Coordinator) -> Document:
    """The whole document: `{"uptime_s", "store", "jobs": [...]}`. Times are in seconds."""
    now_s = coordinator.now_s()
    machines = sorted(coordinator.machines.items())
    return {
        "uptime_s": round(coordinator.uptime_s(), 3),
        "store": coordinator.store_trouble or "ok",
        "jobs": [describe_job(machine, now_s) for _, machine in machines],
    }


def describe_job(machine: JobMachine, now_s: float) -> Document:
    """One job: its current quorum, the one that is forming, and its groups."""
    record, typical_s = machine.record, machine.typical_step_s
    return {
        "job": machine.job,
        "kind": "torchft" if machine.job == POOL else "headway",
        "finished_step": record.finished_step,
        "max_step": record.max_step,
        "expected_groups": machine.expected_groups,
        "expected_missing": _expected_missing(machine, now_s),
        "groups_seen": machine.groups_seen(now_s),
        "typical_step_s": None if typical_s is None else round(typical_s, 3),
        "quorums_issued": machine.issued,
        "quorum": _current(machine),
        "attempts_over": machine.attempts_over,
        "gone": {cause.value: machine.table.deaths[cause] for cause in Gone},
        "goodput": _goodput(machine.times.total(now_s)),
        "deaths": [_death(death, now_s) for death in machine.times.toll.recent],
        "save": _save(machine, now_s),
        "restore": _restore(machine),
        "forming": _forming(machine, machine.waiting(now_s)),
        "groups": [
            _group(machine, key, machine.table.slots[key], now_s) for key in _in_order(machine.table.slots)
        ],
    }


def _in_order(slots: dict[Key, Slot]) -> list[Key]:
    return sorted(slots, key=lambda key: (isinstance(key, str), key))


def _current(machine: JobMachine) -> Document:
    """The last quorum that was issued; before the first since the start, the one on record."""
    quorum = machine.quorum
    return {
        "id": machine.record.quorum_id,
        "step": quorum.max_step if quorum else machine.record.max_step,
        "members": list(machine.member_labels()),
        "lost": [label(key) for key in machine.members_lost()],
        "attempt_over": machine.attempt_is_over,
    }


def _expected_missing(machine: JobMachine, now_s: float) -> list[str]:
    """Expected groups that are not here, where groups are numbered from 0, as the numbers seen suggest."""
    expected, living = machine.expected_groups, machine.table.roll.living(now_s)
    if any(isinstance(key, str) or key >= expected for key in living):
        return []
    return [label(key) for key in range(expected) if key not in living]


def _death(death: Death, now_s: float) -> Document:
    """A death that was not planned, and what it has cost so far."""
    return {
        "group": death.group,
        "step": death.step,
        "cause": death.cause,
        "ago_s": round(now_s - death.at_s, 3),
        "lost_s": round(death.lost_s, 3),
        "victim_s": round(death.victim_s, 3),
        "others_s": round(death.others_s, 3),
        "back_s": None if death.back_s is None else round(death.back_s, 3),
    }


def _goodput(seconds: Mapping[str, float]) -> Document | None:
    """Where the time went, as the groups have said since this server started; None if nobody has."""
    ratio = goodput_ratio(seconds)
    if ratio is None:
        return None
    lost = {cause: round(value, 3) for cause, value in seconds.items() if cause != PRODUCTIVE and value}
    return {"ratio": round(ratio, 4), "lost_s_by_cause": lost}


def _save(machine: JobMachine, now_s: float) -> Document | None:
    """The newest save and the number of failed ones, since this server started; None before either."""
    saves = machine.saves
    newest, age_s = saves.newest, saves.age_s(now_s)
    if newest is None and not saves.failures:
        return None
    return {
        "step": newest.step if newest else None,
        "age_s": None if age_s is None else round(age_s, 3),
        "bytes": newest.bytes if newest else None,
        "seconds": round(newest.seconds, 3) if newest else None,
        "failures": sum(saves.failures.values()),
    }


def _restore(machine: JobMachine) -> Document | None:
    """The save that all groups are to load, until a quorum has done so."""
    restore = machine.record.restore
    return None if restore is None else {"save": restore.save.name, "step": restore.save.step}


def _forming(machine: JobMachine, waiting: Waiting) -> Document:
    asking = [label(key) for key in _in_order(machine.table.slots) if machine.table.slots[key].calls]
    return {
        "reason": waiting.reason.value,
        "why": sentence(waiting),
        "have": waiting.have,
        "need": waiting.need,
        "waited_s": round(waiting.waited_s, 3),
        "limit_s": round(waiting.limit_s, 3),
        "missing": [label(key) for key in waiting.missing],
        "asking": asking,
    }


def _group(machine: JobMachine, key: Key, slot: Slot, now_s: float) -> Document:
    age_s = machine.table.roll.age_s(key, now_s)
    return {
        "group": key if isinstance(key, int) else label(key),
        "state": slot.state(in_quorum=machine.in_quorum(slot)).value,
        "step": slot.step,
        "phase": slot.phase.name.lower(),
        "last_heard_s": None if age_s is None else round(age_s, 3),
        # So exact that it tells in which order groups have left.
        "gone_s": None if slot.gone is None else round(now_s - slot.gone_s, 6),
        "incarnations": slot.incarnations,
        "attached": slot.attached,
        "ranks": sorted(slot.lines),
        "broken_ranks": sorted(slot.broken),
        "rank_pulse_s": _pulses(slot, now_s),
        "draining": slot.draining,
        "suspect": slot.suspect,
        "slow": round(slot.slow, 2),
        "slow_ranks": {str(rank): round(lag, 2) for rank, lag in sorted(slot.slow_ranks.items())},
        "goodput": _goodput(machine.times.of(key, now_s)),
        "address": slot.member.address if slot.member else "",
    }


def _pulses(slot: Slot, now_s: float) -> dict[str, float]:
    """How long ago each rank last said that its process runs, for the ranks that do say so."""
    lines = sorted(slot.lines.items())
    return {str(rank): round(now_s - line.pulse_s, 3) for rank, line in lines if line.pulse_s is not None}
