"""The nouns of the Lighthouse: replica ids, members, quorums, and what is on record of a job."""

import hashlib
import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache

# The group's number in a job of ours, the whole replica id in the torchft-only pool.
Key = int | str

# The name under which the pool of torchft-only replicas is kept. No job of ours can have it.
POOL = ""

JOB_NAME_RULE = "1 to 128 letters, digits, dots, dashes or underscores, the first a letter or digit"
SAVE_NAME_RULE = "1 to 200 letters, digits, dots, dashes or underscores, the first a letter or digit"
_SAVE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
# Room above it for all ids and steps to come.
LARGEST_NUMBER = 2**62
_JOB_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_JOB_ID = re.compile(rf"({_JOB_NAME})/(0|[1-9][0-9]{{0,5}}):([A-Za-z0-9._-]{{1,64}})")
_MAX_POOL_ID_CHARS = 256


class Phase(IntEnum):
    """What a group is doing in its step. The numbers are those of the wire."""

    UNSPECIFIED = 0
    QUORUM = 1
    HEAL = 2
    COMPUTE = 3
    REDUCE = 4
    COMMIT = 5
    SAVE = 6


class StartMode(IntEnum):
    """What a starting group is to do. The numbers are those of the wire."""

    FRESH = 1
    HEAL = 2
    FINISHED = 3
    RESTORE = 4


class ColdStart(IntEnum):
    """What a group is told that asks for a save. The numbers are those of the wire."""

    WAIT = 1
    LOOK = 2
    HEAL = 3
    RESTORE = 4
    FRESH = 5
    LOST = 6
    FINISHED = 7


class NoticeKind(IntEnum):
    """What a rank is told. The numbers are those of the wire."""

    ATTEMPT_OVER = 1
    DRAIN = 2
    SUPERSEDED = 3
    EVICTED = 4
    FINISHED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """What a rank must know at once. `cause` is one line for people.

    `quorum_id` is the attempt that is over, 0 where none is meant. With a number above that of the
    rank's own attempt, that one is over too.
    """

    kind: NoticeKind
    quorum_id: int = 0
    cause: str = ""


class Refusal(StrEnum):
    """Why a caller is sent away. The value is the metric label and the log field."""

    SUPERSEDED = "superseded"
    EVICTED = "evicted"
    LEFT = "left"
    REATTACHED = "reattached"
    WARMING_UP = "warming_up"
    TABLE_FULL = "table_full"
    TOO_MANY_JOBS = "too_many_jobs"
    TOO_MANY_CALLS = "too_many_calls"
    GOING_DOWN = "going_down"
    UNKNOWN = "unknown"
    NOT_ADMITTED = "not_admitted"
    NEEDS_TLS = "needs_tls"
    NO_TOKEN = "no_token"
    WRONG_TOKEN = "wrong_token"
    STALE_NONCE = "stale_nonce"


def is_job_name(name: str) -> bool:
    """Whether `name` may name a job: see JOB_NAME_RULE."""
    return re.fullmatch(_JOB_NAME, name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaId:
    """A replica id of torchft's wire, taken apart.

    `text` is the whole id; the uuid in it is the secret that its owner is known by, so it is never
    shown. `key` is what an incarnation shares with those before it.
    """

    text: str
    job: str
    key: Key

    @property
    def label(self) -> str:
        """How people call it, without the secret: `group 2`, or a torchft replica's name."""
        return label(self.key)


def label(key: Key) -> str:
    """How people call the holder of `key`. Never shows a uuid."""
    if isinstance(key, int):
        return f"group {key}"
    name, colon, _ = key.partition(":")
    return name if colon else "~" + hashlib.blake2s(key.encode(), digest_size=4).hexdigest()


@lru_cache(maxsize=4096)
def parse_replica_id(text: str) -> ReplicaId:
    """Take a replica id apart: `JOB/GROUP:UUID`, or without a slash any name of a torchft replica.

    Raises ValueError with one sentence, without the id, when it is neither.
    """
    if "/" in text:
        match = _JOB_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"malformed replica id: want JOB/GROUP:UUID, with a job of {JOB_NAME_RULE}")
        return ReplicaId(text=text, job=match[1], key=int(match[2]))
    if not 0 < len(text) <= _MAX_POOL_ID_CHARS or not text.isprintable():
        raise ValueError(f"malformed replica id: want 1 to {_MAX_POOL_ID_CHARS} printable characters")
    return ReplicaId(text=text, job=POOL, key=text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A replica that asks for a quorum.

    `wire` is its whole message as it came, so that fields which this version does not know reach
    the others; the rest is read from it.
    """

    id: ReplicaId
    address: str = ""
    store_address: str = ""
    step: int = 0
    world_size: int = 1
    shrink_only: bool = False
    commit_failures: int = 0
    wire: bytes = b""

    def place(self) -> tuple[str, str, str, int]:
        """What must be the same for an existing process group to go on."""
        return (self.id.text, self.address, self.store_address, self.world_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quorum:
    """The members that train together now, in the order of their ids."""

    quorum_id: int
    members: tuple[Member, ...]

    @property
    def max_step(self) -> int:
        """The highest step among the members."""
        return max(member.step for member in self.members)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What all groups of a job must share. An empty text or 0 stands for: not said."""

    fingerprint: str = ""
    group_world_size: int = 0
    platform: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveOffer:
    """A complete save of a job, by the name that every group finds it under.

    Raises ValueError with one sentence for what cannot be one.
    """

    name: str
    step: int
    quorum_id: int

    def __post_init__(self) -> None:
        if re.fullmatch(_SAVE_NAME, self.name) is None:
            raise ValueError(f"malformed name of a save: want {SAVE_NAME_RULE}")
        if not (0 <= self.step < LARGEST_NUMBER and 0 <= self.quorum_id < LARGEST_NUMBER):
            raise ValueError("malformed save: step and quorum_id must be at least 0 and below 2^62")


@dataclass(frozen=True, kw_only=True, slots=True)
class SavesFound:
    """What a group has seen that has looked for saves: the newest complete one as `offer`, if any.

    `highest_quorum_id` is that of any save there, usable or not; `unusable`: some were published, and
    none can be loaded. Raises ValueError with one sentence for numbers that cannot be.
    """

    offer: SaveOffer | None = None
    highest_quorum_id: int = 0
    unusable: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.highest_quorum_id < LARGEST_NUMBER:
            raise ValueError("malformed request: highest_quorum_id must be at least 0 and below 2^62")


@dataclass(frozen=True, kw_only=True, slots=True)
class Restore:
    """The save that all groups of a job are to load, and who was told so.

    `told` are groups and hashes of their incarnations.
    """

    save: SaveOffer
    told: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdStartAnswer:
    """What a group is told that asks for a save. `save` is the one to load, with RESTORE only.

    `cause` is one line for people.
    """

    verdict: ColdStart
    save: SaveOffer | None = None
    cause: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """What outlives the server: the last quorum of a job, its highest step, its end.

    `finished_step` is None until a group has said that the last step is committed. `holders` are
    the groups and hashes of their present incarnations; `tombs` hashes of those that may not come
    back, and why. `identity` is what its groups share. `floor` is the last quorum id before the job
    was forgotten: what was saved up to it is not restored. `restore` is decided and not yet reached
    by a quorum.
    """

    job: str
    quorum_id: int
    members: tuple[str, ...] = ()
    max_step: int = 0
    finished_step: int | None = None
    holders: tuple[tuple[int, str], ...] = ()
    tombs: tuple[tuple[str, Refusal], ...] = ()
    identity: Identity = Identity()
    floor: int = 0
    restore: Restore | None = None

    @property
    def is_blank(self) -> bool:
        """Whether nothing has happened in the job since it was new, or was forgotten."""
        happened = self.members or self.max_step or self.finished_step is not None
        return not happened and self.restore is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """Who attaches: the first message of the stream that each rank of a group holds.

    `group_world_size`, `fingerprint` and `platform` are what all groups of a job must share;
    `step` is the number of steps this incarnation has committed so far, `backstop` whether it makes saves.
    """

    job: str
    group: int
    replica_id: str
    group_world_size: int
    fingerprint: str = ""
    platform: str = ""
    step: int = 0
    group_rank: int = 0
    backstop: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """What a group that attaches is to do. `step` is the highest one on record."""

    start_mode: StartMode
    step: int
