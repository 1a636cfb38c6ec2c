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

class StartMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_MODE_UNSPECIFIED: _ClassVar[StartMode]
    START_MODE_FRESH: _ClassVar[StartMode]
    START_MODE_HEAL: _ClassVar[StartMode]
    START_MODE_FINISHED: _ClassVar[StartMode]
PHASE_UNSPECIFIED: Phase
PHASE_QUORUM: Phase
PHASE_HEAL: Phase
PHASE_COMPUTE: Phase
PHASE_REDUCE: Phase
PHASE_COMMIT: Phase
START_MODE_UNSPECIFIED: StartMode
START_MODE_FRESH: StartMode
START_MODE_HEAL: StartMode
START_MODE_FINISHED: StartMode

class AttachRequest(_message.Message):
    __slots__ = ("hello", "progress", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    progress: Progress
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("job", "group", "replica_id", "group_world_size", "fingerprint", "platform", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: int
    replica_id: str
    group_world_size: int
    fingerprint: str
    platform: str
    step: int
    def __init__(self, job: _Optional[str] = ..., group: _Optional[int] = ..., replica_id: _Optional[str] = ..., group_world_size: _Optional[int] = ..., fingerprint: _Optional[str] = ..., platform: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "phase")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    step: int
    phase: Phase
    def __init__(self, step: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("finished", "step")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    step: int
    def __init__(self, finished: bool = ..., step: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome",)
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("start_mode", "step")
    START_MODE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    start_mode: StartMode
    step: int
    def __init__(self, start_mode: _Optional[_Union[StartMode, str]] = ..., step: _Optional[int] = ...) -> None: ...

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
