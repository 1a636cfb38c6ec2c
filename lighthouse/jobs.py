"""The machines of all jobs: made from their records when needed, let go when idle, forgotten when told to."""

import itertools

from lighthouse.config import LighthouseConfig
from lighthouse.machine import JobMachine
from lighthouse.model import POOL, JobRecord, Refusal
from lighthouse.pace import PaceRules
from lighthouse.quorum import Rules
from lighthouse.store import MAX_JOBS_ON_RECORD, Store
from lighthouse.table import Limits

MAX_JOBS = 256
# Three times the time between the pulses of a rank.
SHORTEST_PULSE_TIMEOUT_S = 3.0


class JobAliveError(Exception):
    """A job cannot be forgotten while groups of it live. Its text is one sentence."""


class Jobs:
    """At most MAX_JOBS machines, and the records of all jobs. Time is handed in."""

    def __init__(self, config: LighthouseConfig, store: Store, *, now_s: float, wall_s: float) -> None:
        """Take up what is on record. Raises StoreError if it cannot be read."""
        self.machines: dict[str, JobMachine] = {}
        self._config = config
        self._store = store
        self._records = store.load()
        self._since_s = now_s
        self._warm_until_s = now_s + config.heartbeat_timeout_s
        self._unused_quorum_id = _unused_ids(wall_s)
        self._limits = Limits(
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            pulse_timeout_s=max(config.heartbeat_timeout_s, SHORTEST_PULSE_TIMEOUT_S),
            pace=PaceRules(
                limit_factor=config.progress_limit_factor,
                limit_floor_s=config.progress_limit_floor_ms / 1000,
                heal_deadline_s=config.heal_deadline_ms / 1000,
            ),
        )
        known = [job for job, record in self._records.items() if not record.is_blank]
        for job in itertools.islice(known, MAX_JOBS):
            self.machine_of(job, now_s)

    def is_warming_up(self, now_s: float) -> bool:
        """Whether this server has just begun, and may not have heard yet of all that live."""
        return now_s < self._warm_until_s

    def write(self, record: JobRecord) -> None:
        """Make a record durable. Raises StoreError."""
        if record.job not in self._records and len(self._records) >= MAX_JOBS_ON_RECORD:
            self._drop_a_blank_one()
        self._store.write(record)
        self._records.pop(record.job, None)
        self._records[record.job] = record

    def machine_of(self, job: str, now_s: float) -> JobMachine | Refusal:
        """The machine of a job, which is made if there is none."""
        machine = self.machines.get(job)
        if machine is not None:
            return machine
        if len(self.machines) >= MAX_JOBS and not self._let_one_go(now_s):
            return Refusal.TOO_MANY_JOBS
        first = 0 if self._config.state_dir else self._unused_quorum_id
        machine = self.machines[job] = JobMachine(
            record=self._records.get(job) or JobRecord(job=job, quorum_id=first),
            rules=self._rules_of(job),
            limits=self._limits,
            warm_until_s=self._warm_until_s,
            unused_quorum_id=self._unused_quorum_id,
            since_s=self._since_s,
        )
        return machine

    def forget(self, job: str, now_s: float) -> bool:
        """Drop what is known of a job; whether there was anything.

        Its last quorum id stays: ids go on above it, and no save from before is restored. Raises
        JobAliveError while a group of it lives, StoreError if the disk refuses.
        """
        machine = self.machines.get(job)
        if machine is not None and machine.is_busy(now_s):
            raise JobAliveError(f"groups of {job} are alive: stop them before the job is forgotten")
        record = self._records.get(job) if machine is None else machine.record
        known = machine is not None or (record is not None and not record.is_blank)
        if record is not None and record.quorum_id > 0:
            self.write(JobRecord(job=job, quorum_id=record.quorum_id, floor=record.quorum_id))
        self.machines.pop(job, None)
        return known

    def _drop_a_blank_one(self) -> None:
        """Make room by the oldest that holds nothing but where the ids of a forgotten job ended."""
        blank = (job for job, record in self._records.items() if record.is_blank)
        oldest = next(blank, None)
        if oldest is not None:
            self._store.forget(oldest)
            del self._records[oldest]

    def _rules_of(self, job: str) -> Rules:
        return Rules(
            min_replicas=self._config.min_replicas,
            expected_groups=0 if job == POOL else self._config.expected_groups,
            join_timeout_s=self._config.join_timeout_s,
            torchft_rules=job == POOL,
        )

    def _let_one_go(self, now_s: float) -> bool:
        """Drop a job that nobody uses from memory; its record stays."""
        for job, machine in self.machines.items():
            if machine.is_idle(now_s):
                del self.machines[job]
                return True
        return False


def _unused_ids(wall_s: float) -> int:
    """Where quorum ids start when nothing is remembered: above all that an earlier life has used.

    A restart takes longer than 1/4096 s, and no job uses up 4096 ids a second. Fits in 63 bits.
    """
    return int(wall_s * 4096)
