"""Metrics for Prometheus, read from the machines at the moment of the scrape."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lighthouse.accounts import goodput_ratio
from lighthouse.coordinator import Coordinator
from lighthouse.machine import JobMachine
from lighthouse.model import Key
from lighthouse.quorum import Reason
from lighthouse.slot import Gone, SlotState
from protos import lighthouse_pb2 as pb
from protos import torchft_pb2

_PREFIX = "headway_lighthouse"
_SERVICES = (pb.DESCRIPTOR.services_by_name, torchft_pb2.DESCRIPTOR.services_by_name)
# A counter that is born with its first increase would hide it from Prometheus' rate() and increase().
_UNASKED = {
    method.name: 0 for services in _SERVICES for service in services.values() for method in service.methods
}


class MachineCollector(Collector):
    """Labels are job, group, state, reason and cause: never an incarnation, never an address.

    Replicas of the torchft-only pool, whose names are anybody's invention, are only counted.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """All metrics, as of now. Runs on the event loop's thread."""
        now_s = self._coordinator.now_s()
        machines = [machine for _, machine in sorted(self._coordinator.machines.items())]
        yield GaugeMetricFamily(
            f"{_PREFIX}_uptime_seconds", "Time since the start.", value=self._coordinator.uptime_s()
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_store_ok",
            "1 if the last record could be written.",
            value=float(not self._coordinator.store_trouble),
        )
        yield _turned_away(self._coordinator)
        yield from _jobs(machines, now_s)
        yield from _quorums(machines)
        yield _waiting(machines, now_s)
        yield _states(machines)
        yield from _groups(machines, now_s)
        yield from _time(machines, now_s)
        yield _deaths(machines)
        yield from _saves(machines, now_s)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry need not ask what is to come."""
        return iter(())


def _turned_away(coordinator: Coordinator) -> Metric:
    family = CounterMetricFamily(
        f"{_PREFIX}_calls_turned_away", "Calls without the token, or before attaching.", labels=["method"]
    )
    for method, count in sorted({**_UNASKED, **coordinator.turned_away.by_method}.items()):
        family.add_metric([method], count)
    return family


def _jobs(machines: list[JobMachine], now_s: float) -> Iterator[Metric]:
    finished = GaugeMetricFamily(
        f"{_PREFIX}_job_finished", "1 once the last step is committed.", labels=["job"]
    )
    alive = GaugeMetricFamily(f"{_PREFIX}_groups_alive", "Groups that live.", labels=["job"])
    expected = GaugeMetricFamily(
        f"{_PREFIX}_expected_groups", "Groups that the operator expects, 0 for any number.", labels=["job"]
    )
    for machine in machines:
        finished.add_metric([machine.job], float(machine.record.finished_step is not None))
        alive.add_metric([machine.job], machine.groups_seen(now_s))
        expected.add_metric([machine.job], machine.expected_groups)
    yield from (finished, alive, expected)


def _quorums(machines: list[JobMachine]) -> Iterator[Metric]:
    quorum_id = GaugeMetricFamily(f"{_PREFIX}_quorum_id", "Number of the last quorum.", labels=["job"])
    members = GaugeMetricFamily(f"{_PREFIX}_quorum_members", "Members of the last quorum.", labels=["job"])
    step = GaugeMetricFamily(f"{_PREFIX}_max_step", "Highest step of all quorums.", labels=["job"])
    issued = CounterMetricFamily(f"{_PREFIX}_quorums", "Quorums issued since the start.", labels=["job"])
    over = CounterMetricFamily(f"{_PREFIX}_attempts_over", "Attempts that ended early.", labels=["job"])
    for machine in machines:
        over.add_metric([machine.job], machine.attempts_over)
        quorum_id.add_metric([machine.job], machine.record.quorum_id)
        members.add_metric([machine.job], len(machine.member_labels()))
        step.add_metric([machine.job], machine.record.max_step)
        issued.add_metric([machine.job], machine.issued)
    yield from (quorum_id, members, step, issued, over)


def _waiting(machines: list[JobMachine], now_s: float) -> Metric:
    family = GaugeMetricFamily(
        f"{_PREFIX}_quorum_waiting", "1 for what holds up the next quorum.", labels=["job", "reason"]
    )
    for machine in machines:
        present = machine.waiting(now_s).reason
        for reason in Reason:
            family.add_metric([machine.job, reason.value], float(reason is present))
    return family


def _states(machines: list[JobMachine]) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_replicas", "Replicas in each state.", labels=["job", "state"])
    for machine in machines:
        states = [slot.state(in_quorum=machine.in_quorum(slot)) for slot in machine.table.slots.values()]
        for state in SlotState:
            family.add_metric([machine.job, state.value], states.count(state))
    return family


def _groups(machines: list[JobMachine], now_s: float) -> Iterator[Metric]:
    labels = ["job", "group"]
    step = GaugeMetricFamily(f"{_PREFIX}_group_step", "Steps that a group has committed.", labels=labels)
    silence = GaugeMetricFamily(
        f"{_PREFIX}_group_silence_seconds", "Time since a living group was heard.", labels=labels
    )
    alive = GaugeMetricFamily(
        f"{_PREFIX}_group_alive", "1 for a group that lives, none where it left as planned.", labels=labels
    )
    lives = CounterMetricFamily(f"{_PREFIX}_group_incarnations", "Incarnations so far.", labels=labels)
    slow = GaugeMetricFamily(
        f"{_PREFIX}_group_slowness",
        "Times the median of the others, 0 if not slower.",
        labels=labels,
    )
    for machine in machines:
        for key, slot in machine.table.slots.items():
            if not isinstance(key, int) or not slot.known:
                continue
            slow.add_metric([machine.job, str(key)], slot.slow)
            step.add_metric([machine.job, str(key)], slot.step)
            lives.add_metric([machine.job, str(key)], slot.incarnations)
            if slot.gone not in (Gone.LEFT, Gone.FINISHED):
                alive.add_metric([machine.job, str(key)], float(slot.gone is None))
            age_s = machine.table.roll.age_s(key, now_s)
            if age_s is not None:
                silence.add_metric([machine.job, str(key)], age_s)
    yield from (step, silence, alive, lives, slow, _lags(machines))


def _lags(machines: list[JobMachine]) -> Metric:
    family = GaugeMetricFamily(
        f"{_PREFIX}_rank_lag_ratio",
        "Share of a round that the other ranks of its group wait for this one.",
        labels=["job", "group", "rank"],
    )
    for machine in machines:
        for key, slot in machine.table.slots.items():
            if slot.gone is None and isinstance(key, int):
                for rank, lag in sorted(slot.lags().items()):
                    family.add_metric([machine.job, str(key), str(rank)], lag)
    return family


def _time(machines: list[JobMachine], now_s: float) -> Iterator[Metric]:
    seconds = CounterMetricFamily(
        f"{_PREFIX}_group_seconds", "Where the time went, as groups say.", labels=["job", "group", "cause"]
    )
    goodput = GaugeMetricFamily(
        f"{_PREFIX}_job_goodput_ratio",
        "Share of productive seconds in those of all groups, since this server first heard of them.",
        labels=["job"],
    )
    deaths = CounterMetricFamily(
        f"{_PREFIX}_death_lost_seconds",
        "What the deaths of a group have cost all groups.",
        labels=["job", "group"],
    )
    for machine in machines:
        for group, by_cause in machine.times.by_group(now_s).items():
            for cause, value in by_cause.items():
                seconds.add_metric([machine.job, str(group), cause], value)
        for group, lost_s in machine.times.toll.by_group().items():
            deaths.add_metric([machine.job, str(group)], lost_s)
        ratio = goodput_ratio(machine.times.total(now_s))
        if ratio is not None:
            goodput.add_metric([machine.job], ratio)
    yield from (seconds, goodput, deaths)


def _deaths(machines: list[JobMachine]) -> Metric:
    family = CounterMetricFamily(f"{_PREFIX}_gone", "Incarnations that ended.", labels=["job", "cause"])
    for machine in machines:
        for cause in Gone:
            family.add_metric([machine.job, cause.value], machine.table.deaths[cause])
    return family


def _saves(machines: list[JobMachine], now_s: float) -> Iterator[Metric]:
    prefix = f"{_PREFIX}_job_save"
    age = GaugeMetricFamily(
        f"{prefix}_age_seconds",
        "Time since the newest save; before one is known, since a group that makes saves was seen.",
        labels=["job"],
    )
    duration = GaugeMetricFamily(f"{prefix}_duration_seconds", "Time that it took.", labels=["job"])
    size = GaugeMetricFamily(f"{prefix}_bytes", "Its size.", labels=["job"])
    failures = CounterMetricFamily(f"{prefix}_failures", "Saves that failed.", labels=["job", "group"])
    for machine in machines:
        newest, unsaved_s = machine.saves.newest, machine.saves.unsaved_s(now_s)
        if unsaved_s is not None:
            age.add_metric([machine.job], unsaved_s)
        if newest is not None:
            duration.add_metric([machine.job], newest.seconds)
            size.add_metric([machine.job], newest.bytes)
        slots = machine.table.slots.items()
        known: dict[Key, int] = {key: 0 for key, slot in slots if isinstance(key, int) and slot.known}
        for key, count in {**known, **machine.saves.failures}.items():
            failures.add_metric([machine.job, str(key)], count)
    yield from (age, duration, size, failures)


def render_metrics(coordinator: Coordinator) -> bytes:
    """The metrics in Prometheus' text format. Runs on the event loop's thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MachineCollector(coordinator))
    return generate_latest(registry)
