from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_QUORUM: _ClassVar[Phase]
    PHASE_HEAL: _ClassVar[Phase]
    PHASE_COMPUTE: _ClassVar[Phase]
    PHASE_REDUCE: _ClassVar[Phase]
    PHASE_COMMIT: _ClassVar[Phase]
    PHASE_SAVE: _ClassVar[Phase]

class NoticeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOTICE_KIND_UNSPECIFIED: _ClassVar[NoticeKind]
    NOTICE_KIND_ATTEMPT_OVER: _ClassVar[NoticeKind]
    NOTICE_KIND_DRAIN: _ClassVar[NoticeKind]
    NOTICE_KIND_SUPERSEDED: _ClassVar[NoticeKind]
    NOTICE_KIND_EVICTED: _ClassVar[NoticeKind]
    NOTICE_KIND_FINISHED: _ClassVar[NoticeKind]

class StartMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_MODE_UNSPECIFIED: _ClassVar[StartMode]
    START_MODE_FRESH: _ClassVar[StartMode]
    START_MODE_HEAL: _ClassVar[StartMode]
    START_MODE_FINISHED: _ClassVar[StartMode]
    START_MODE_RESTORE: _ClassVar[StartMode]

class ColdStart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLD_START_UNSPECIFIED: _ClassVar[ColdStart]
    COLD_START_WAIT: _ClassVar[ColdStart]
    COLD_START_LOOK: _ClassVar[ColdStart]
    COLD_START_HEAL: _ClassVar[ColdStart]
    COLD_START_RESTORE: _ClassVar[ColdStart]
    COLD_START_FRESH: _ClassVar[ColdStart]
    COLD_START_LOST: _ClassVar[ColdStart]
    COLD_START_FINISHED: _ClassVar[ColdStart]
PHASE_UNSPECIFIED: Phase
PHASE_QUORUM: Phase
PHASE_HEAL: Phase
PHASE_COMPUTE: Phase
PHASE_REDUCE: Phase
PHASE_COMMIT: Phase
PHASE_SAVE: Phase
NOTICE_KIND_UNSPECIFIED: NoticeKind
NOTICE_KIND_ATTEMPT_OVER: NoticeKind
NOTICE_KIND_DRAIN: NoticeKind
NOTICE_KIND_SUPERSEDED: NoticeKind
NOTICE_KIND_EVICTED: NoticeKind
NOTICE_KIND_FINISHED: NoticeKind
START_MODE_UNSPECIFIED: StartMode
START_MODE_FRESH: StartMode
START_MODE_HEAL: StartMode
START_MODE_FINISHED: StartMode
START_MODE_RESTORE: StartMode
COLD_START_UNSPECIFIED: ColdStart
COLD_START_WAIT: ColdStart
COLD_START_LOOK: ColdStart
COLD_START_HEAL: ColdStart
COLD_START_RESTORE: ColdStart
COLD_START_FRESH: ColdStart
COLD_START_LOST: ColdStart
COLD_START_FINISHED: ColdStart

class AttachRequest(_message.Message):
    __slots__ = ("hello", "progress", "goodbye", "pulse", "abandoned", "saved", "save_failed")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    PULSE_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    SAVE_FAILED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    progress: Progress
    goodbye: Goodbye
    pulse: Pulse
    abandoned: Abandoned
    saved: Saved
    save_failed: SaveFailed
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., pulse: _Optional[_Union[Pulse, _Mapping]] = ..., abandoned: _Optional[_Union[Abandoned, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ..., save_failed: _Optional[_Union[SaveFailed, _Mapping]] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("step", "quorum_id", "bytes", "seconds", "age_s")
    STEP_FIELD_NUMBER: _ClassVar[int]
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    step: int
    quorum_id: int
    bytes: int
    seconds: float
    age_s: float
    def __init__(self, step: _Optional[int] = ..., quorum_id: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., age_s: _Optional[float] = ...) -> None: ...

class SaveFailed(_message.Message):
    __slots__ = ("step", "cause")
    STEP_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    step: int
    cause: str
    def __init__(self, step: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class Pulse(_message.Message):
    __slots__ = ("seconds", "rounds_s", "waited_s")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    seconds: _containers.ScalarMap[str, float]
    rounds_s: float
    waited_s: float
    def __init__(self, seconds: _Optional[_Mapping[str, float]] = ..., rounds_s: _Optional[float] = ..., waited_s: _Optional[float] = ...) -> None: ...

class Abandoned(_message.Message):
    __slots__ = ("quorum_id", "cause")
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    quorum_id: int
    cause: str
    def __init__(self, quorum_id: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("hello", "pulse")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PULSE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    pulse: Pulse
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., pulse: _Optional[_Union[Pulse, _Mapping]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("notice",)
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    notice: Notice
    def __init__(self, notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("job", "group", "replica_id", "group_world_size", "fingerprint", "platform", "step", "group_rank", "backstop")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    BACKSTOP_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: int
    replica_id: str
    group_world_size: int
    fingerprint: str
    platform: str
    step: int
    group_rank: int
    backstop: bool
    def __init__(self, job: _Optional[str] = ..., group: _Optional[int] = ..., replica_id: _Optional[str] = ..., group_world_size: _Optional[int] = ..., fingerprint: _Optional[str] = ..., platform: _Optional[str] = ..., step: _Optional[int] = ..., group_rank: _Optional[int] = ..., backstop: bool = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "phase", "rounds")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    step: int
    phase: Phase
    rounds: int
    def __init__(self, step: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., rounds: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("finished", "step", "may_save_s")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MAY_SAVE_S_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    step: int
    may_save_s: float
    def __init__(self, finished: bool = ..., step: _Optional[int] = ..., may_save_s: _Optional[float] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome", "notice")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    notice: Notice
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("kind", "quorum_id", "cause")
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    kind: NoticeKind
    quorum_id: int
    cause: str
    def __init__(self, kind: _Optional[_Union[NoticeKind, str]] = ..., quorum_id: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("start_mode", "step")
    START_MODE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    start_mode: StartMode
    step: int
    def __init__(self, start_mode: _Optional[_Union[StartMode, str]] = ..., step: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("replica_id",)
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    def __init__(self, replica_id: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("job", "group")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: int
    def __init__(self, job: _Optional[str] = ..., group: _Optional[int] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("job", "group")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: int
    def __init__(self, job: _Optional[str] = ..., group: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ForgetResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class SaveOffer(_message.Message):
    __slots__ = ("name", "step", "quorum_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    step: int
    quorum_id: int
    def __init__(self, name: _Optional[str] = ..., step: _Optional[int] = ..., quorum_id: _Optional[int] = ...) -> None: ...

class ProposeSaveRequest(_message.Message):
    __slots__ = ("replica_id", "looked", "save", "highest_quorum_id", "unusable")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    LOOKED_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    looked: bool
    save: SaveOffer
    highest_quorum_id: int
    unusable: bool
    def __init__(self, replica_id: _Optional[str] = ..., looked: bool = ..., save: _Optional[_Union[SaveOffer, _Mapping]] = ..., highest_quorum_id: _Optional[int] = ..., unusable: bool = ...) -> None: ...

class ProposeSaveResponse(_message.Message):
    __slots__ = ("verdict", "save", "cause")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    verdict: ColdStart
    save: SaveOffer
    cause: str
    def __init__(self, verdict: _Optional[_Union[ColdStart, str]] = ..., save: _Optional[_Union[SaveOffer, _Mapping]] = ..., cause: _Optional[str] = ...) -> None: ...

class ChallengeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChallengeResponse(_message.Message):
    __slots__ = ("nonce", "tls_port")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TLS_PORT_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    tls_port: int
    def __init__(self, nonce: _Optional[bytes] = ..., tls_port: _Optional[int] = ...) -> None: ...
